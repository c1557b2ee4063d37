; Compiled from kernel.c by scripts/compile_kernels.py: 5d35b89c7df578ecefd9ac4149fd45ed016972c611dc0d09dbb454a364a4bfff b6171d719dabb6a8a468e6bc3b8558438412149168399050ed49f480815be05c
%struct.Spec = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, double, double, double, i64, i64, [2 x i64], [2 x i64] }
%struct.Epoch = type { ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, [2 x %struct.Kind] }
%struct.Kind = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.Placed = type { ptr, i64, i64, i64, i64 }

@spec_bytes = dso_local local_unnamed_addr constant i64 232, align 8
@epoch_bytes = dso_local local_unnamed_addr constant i64 336, align 8
@placed_bytes = dso_local local_unnamed_addr constant i64 40, align 8

; Function Attrs: nofree nosync nounwind memory(read, argmem: readwrite, inaccessiblemem: none)
define dso_local void @braid_rows(i64 noundef %0, ptr noundef %1, ptr noundef readonly %2, ptr nocapture noundef readonly %3, ptr noundef readonly %4, ptr noundef %5, i64 noundef %6, ptr nocapture noundef %7, i64 noundef %8, ptr nocapture noundef writeonly %9, ptr nocapture noundef writeonly %10) local_unnamed_addr #0 {
  %12 = alloca [2 x i64], align 16
  %13 = alloca [2 x i64], align 16
  %14 = icmp eq i64 %0, 0
  br i1 %14, label %20, label %15

15:                                               ; preds = %11
  %16 = icmp eq ptr %2, null
  %17 = icmp eq ptr %4, null
  %18 = getelementptr inbounds [2 x i64], ptr %13, i64 0, i64 1
  %19 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 1
  br label %21

20:                                               ; preds = %746, %11
  ret void

21:                                               ; preds = %15, %746
  %22 = phi i64 [ 0, %15 ], [ %749, %746 ]
  br i1 %16, label %26, label %23

23:                                               ; preds = %21
  %24 = getelementptr inbounds i64, ptr %2, i64 %22
  %25 = load i64, ptr %24, align 8
  br label %26

26:                                               ; preds = %21, %23
  %27 = phi i64 [ %25, %23 ], [ 0, %21 ]
  %28 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27
  %29 = and i64 %27, %6
  %30 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29
  %31 = getelementptr inbounds i64, ptr %3, i64 %22
  %32 = load i64, ptr %31, align 8
  %33 = load i64, ptr %28, align 8
  %34 = udiv i64 %32, %33
  %35 = mul i64 %34, %33
  %36 = urem i64 %32, %33
  br i1 %17, label %40, label %37

37:                                               ; preds = %26
  %38 = getelementptr inbounds i64, ptr %4, i64 %22
  %39 = load i64, ptr %38, align 8
  br label %40

40:                                               ; preds = %26, %37
  %41 = phi i64 [ %39, %37 ], [ 0, %26 ]
  %42 = add i64 %41, %34
  %43 = load ptr, ptr %30, align 8
  %44 = icmp eq ptr %43, %28
  br i1 %44, label %45, label %49

45:                                               ; preds = %40
  %46 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 1
  %47 = load i64, ptr %46, align 8
  %48 = icmp eq i64 %47, %42
  br i1 %48, label %271, label %49

49:                                               ; preds = %45, %40
  store ptr %28, ptr %30, align 8
  %50 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 1
  store i64 %42, ptr %50, align 8
  %51 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 18
  %52 = load i64, ptr %51, align 8
  %53 = add i64 %52, -7046029254386353131
  %54 = mul i64 %42, -3335678366873096957
  %55 = add i64 %54, -4658895280553007687
  %56 = lshr i64 %55, 30
  %57 = xor i64 %56, %55
  %58 = mul i64 %57, -4658895280553007687
  %59 = lshr i64 %58, 27
  %60 = xor i64 %59, %58
  %61 = mul i64 %60, -7723592293110705685
  %62 = lshr i64 %61, 31
  %63 = xor i64 %62, %53
  %64 = xor i64 %63, %61
  %65 = lshr i64 %64, 30
  %66 = xor i64 %65, %64
  %67 = mul i64 %66, -4658895280553007687
  %68 = lshr i64 %67, 27
  %69 = xor i64 %68, %67
  %70 = mul i64 %69, -7723592293110705685
  %71 = lshr i64 %70, 31
  %72 = xor i64 %71, %70
  %73 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 2
  store i64 %72, ptr %73, align 8
  %74 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 13
  %75 = load i64, ptr %74, align 8
  %76 = and i64 %42, 2097151
  %77 = mul i64 %75, %76
  %78 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 12
  %79 = load i64, ptr %78, align 8
  %80 = urem i64 %77, %79
  %81 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 3
  store i64 %80, ptr %81, align 8
  %82 = load i64, ptr %78, align 8
  %83 = udiv i64 %80, %82
  %84 = mul i64 %83, %82
  %85 = urem i64 %80, %82
  %86 = add i64 %85, 1
  %87 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 11
  %88 = load i64, ptr %87, align 8
  %89 = shl i64 %86, %88
  %90 = add i64 %89, -1
  %91 = udiv i64 %90, %82
  %92 = mul i64 %91, %82
  %93 = lshr i64 %92, %88
  %94 = sub i64 %85, %93
  %95 = shl i64 %83, %88
  %96 = add i64 %95, %91
  %97 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 6
  %98 = load i64, ptr %97, align 8
  %99 = mul i64 %96, %98
  %100 = tail call i64 @llvm.umin.i64(i64 %94, i64 %98)
  %101 = add i64 %100, %99
  %102 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 4
  store i64 %101, ptr %102, align 8
  %103 = load i64, ptr %28, align 8
  %104 = add i64 %103, %80
  %105 = load i64, ptr %78, align 8
  %106 = udiv i64 %104, %105
  %107 = mul i64 %106, %105
  %108 = urem i64 %104, %105
  %109 = add i64 %108, 1
  %110 = load i64, ptr %87, align 8
  %111 = shl i64 %109, %110
  %112 = add i64 %111, -1
  %113 = udiv i64 %112, %105
  %114 = mul i64 %113, %105
  %115 = lshr i64 %114, %110
  %116 = sub i64 %108, %115
  %117 = shl i64 %106, %110
  %118 = add i64 %117, %113
  %119 = load i64, ptr %97, align 8
  %120 = mul i64 %118, %119
  %121 = tail call i64 @llvm.umin.i64(i64 %116, i64 %119)
  %122 = sub i64 %120, %101
  %123 = add i64 %121, %122
  %124 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 5
  store i64 %123, ptr %124, align 8
  %125 = add i64 %72, -7046029254386353131
  %126 = xor i64 %125, -5099307698220928417
  %127 = lshr i64 %126, 30
  %128 = xor i64 %127, %126
  %129 = mul i64 %128, -4658895280553007687
  %130 = lshr i64 %129, 27
  %131 = xor i64 %130, %129
  %132 = mul i64 %131, -7723592293110705685
  %133 = lshr i64 %132, 31
  %134 = xor i64 %133, %132
  %135 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 6
  store i64 %134, ptr %135, align 8
  %136 = xor i64 %125, -2339995689698515380
  %137 = lshr i64 %136, 30
  %138 = xor i64 %137, %136
  %139 = mul i64 %138, -4658895280553007687
  %140 = lshr i64 %139, 27
  %141 = xor i64 %140, %139
  %142 = mul i64 %141, -7723592293110705685
  %143 = lshr i64 %142, 31
  %144 = xor i64 %143, %142
  %145 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 7
  store i64 %144, ptr %145, align 8
  %146 = xor i64 %125, 4834670637226298483
  %147 = lshr i64 %146, 30
  %148 = xor i64 %147, %146
  %149 = mul i64 %148, -4658895280553007687
  %150 = lshr i64 %149, 27
  %151 = xor i64 %150, %149
  %152 = mul i64 %151, -7723592293110705685
  %153 = lshr i64 %152, 31
  %154 = xor i64 %153, %152
  %155 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 8
  store i64 %154, ptr %155, align 8
  %156 = xor i64 %125, 165690204361845564
  %157 = lshr i64 %156, 30
  %158 = xor i64 %157, %156
  %159 = mul i64 %158, -4658895280553007687
  %160 = lshr i64 %159, 27
  %161 = xor i64 %160, %159
  %162 = mul i64 %161, -7723592293110705685
  %163 = lshr i64 %162, 31
  %164 = xor i64 %163, %162
  %165 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 9
  store i64 %164, ptr %165, align 8
  %166 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10
  %167 = load i64, ptr %97, align 8
  %168 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 7
  %169 = load i64, ptr %168, align 8
  %170 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %171 = load i64, ptr %170, align 8
  store i64 %123, ptr %166, align 8
  %172 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 1
  store i64 %167, ptr %172, align 8
  %173 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 2
  store i64 %169, ptr %173, align 8
  %174 = mul i64 %169, %167
  %175 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 3
  store i64 %174, ptr %175, align 8
  %176 = icmp eq i64 %174, 0
  br i1 %176, label %223, label %177

177:                                              ; preds = %49
  %178 = udiv i64 %123, %174
  %179 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 4
  store i64 %178, ptr %179, align 8
  %180 = mul i64 %178, %174
  %181 = urem i64 %123, %174
  %182 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 5
  store i64 %181, ptr %182, align 8
  %183 = shl i64 %171, 4
  %184 = icmp ult i64 %178, %183
  %185 = zext i1 %184 to i64
  %186 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 6
  store i64 %185, ptr %186, align 8
  br i1 %184, label %187, label %189

187:                                              ; preds = %177
  %188 = udiv i64 %181, %167
  br label %189

189:                                              ; preds = %187, %177
  %190 = phi i64 [ %188, %187 ], [ 0, %177 ]
  %191 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 7
  store i64 %190, ptr %191, align 8
  %192 = mul i64 %178, %169
  %193 = udiv i64 %192, %171
  %194 = tail call i64 @llvm.umax.i64(i64 %193, i64 1)
  %195 = tail call i64 @llvm.umin.i64(i64 %194, i64 %169)
  %196 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 8
  store i64 %195, ptr %196, align 8
  %197 = udiv i64 %169, %195
  %198 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 9
  store i64 %197, ptr %198, align 8
  %199 = mul i64 %197, %195
  %200 = urem i64 %169, %195
  %201 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 10
  store i64 %200, ptr %201, align 8
  %202 = udiv i64 %190, %195
  %203 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 11
  store i64 %202, ptr %203, align 8
  %204 = mul i64 %202, %195
  %205 = urem i64 %190, %195
  %206 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 12
  store i64 %205, ptr %206, align 8
  %207 = mul i64 %190, %167
  %208 = sub i64 %181, %207
  %209 = select i1 %184, i64 %208, i64 0
  %210 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 13
  store i64 %209, ptr %210, align 8
  %211 = udiv i64 %101, %174
  %212 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 14
  store i64 %211, ptr %212, align 8
  %213 = icmp ult i64 %123, 1099511627776
  br i1 %213, label %214, label %216

214:                                              ; preds = %189
  %215 = sub i64 %123, %209
  br label %220

216:                                              ; preds = %189
  %217 = tail call i64 @llvm.umax.i64(i64 %209, i64 1)
  %218 = udiv i64 %123, %217
  %219 = add i64 %218, -1
  br label %220

220:                                              ; preds = %216, %214
  %221 = phi i64 [ %215, %214 ], [ %219, %216 ]
  %222 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 0, i32 15
  store i64 %221, ptr %222, align 8
  br label %223

223:                                              ; preds = %220, %49
  %224 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1
  %225 = load i64, ptr %28, align 8
  %226 = sub i64 %225, %123
  %227 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 9
  %228 = load i64, ptr %227, align 8
  %229 = sub i64 %80, %101
  %230 = load i64, ptr %170, align 8
  store i64 %226, ptr %224, align 8
  %231 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 1
  store i64 %228, ptr %231, align 8
  %232 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 2
  store i64 1, ptr %232, align 8
  %233 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 3
  store i64 %228, ptr %233, align 8
  %234 = icmp eq i64 %228, 0
  br i1 %234, label %271, label %235

235:                                              ; preds = %223
  %236 = udiv i64 %226, %228
  %237 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 4
  store i64 %236, ptr %237, align 8
  %238 = mul i64 %236, %228
  %239 = urem i64 %226, %228
  %240 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 5
  store i64 %239, ptr %240, align 8
  %241 = shl i64 %230, 4
  %242 = icmp ult i64 %236, %241
  %243 = zext i1 %242 to i64
  %244 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 6
  store i64 %243, ptr %244, align 8
  br i1 %242, label %245, label %247

245:                                              ; preds = %235
  %246 = udiv i64 %239, %228
  br label %247

247:                                              ; preds = %245, %235
  %248 = phi i64 [ %246, %245 ], [ 0, %235 ]
  %249 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 7
  store i64 %248, ptr %249, align 8
  %250 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 8
  store i64 1, ptr %250, align 8
  %251 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 9
  store i64 1, ptr %251, align 8
  %252 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 10
  store i64 0, ptr %252, align 8
  %253 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 11
  store i64 %248, ptr %253, align 8
  %254 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 12
  store i64 0, ptr %254, align 8
  %255 = mul i64 %248, %228
  %256 = sub i64 %239, %255
  %257 = select i1 %242, i64 %256, i64 0
  %258 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 13
  store i64 %257, ptr %258, align 8
  %259 = udiv i64 %229, %228
  %260 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 14
  store i64 %259, ptr %260, align 8
  %261 = icmp ult i64 %226, 1099511627776
  br i1 %261, label %262, label %264

262:                                              ; preds = %247
  %263 = sub i64 %226, %257
  br label %268

264:                                              ; preds = %247
  %265 = tail call i64 @llvm.umax.i64(i64 %257, i64 1)
  %266 = udiv i64 %226, %265
  %267 = add i64 %266, -1
  br label %268

268:                                              ; preds = %264, %262
  %269 = phi i64 [ %263, %262 ], [ %267, %264 ]
  %270 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 1, i32 15
  store i64 %269, ptr %270, align 8
  br label %271

271:                                              ; preds = %268, %223, %45
  %272 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 3
  %273 = load i64, ptr %272, align 8
  %274 = add i64 %273, %36
  %275 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 12
  %276 = load i64, ptr %275, align 8
  %277 = udiv i64 %274, %276
  %278 = mul i64 %277, %276
  %279 = urem i64 %274, %276
  %280 = add i64 %279, 1
  %281 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 11
  %282 = load i64, ptr %281, align 8
  %283 = shl i64 %280, %282
  %284 = add i64 %283, -1
  %285 = udiv i64 %284, %276
  %286 = mul i64 %285, %276
  %287 = lshr i64 %286, %282
  %288 = sub i64 %279, %287
  %289 = shl i64 %277, %282
  %290 = add i64 %289, %285
  %291 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 6
  %292 = load i64, ptr %291, align 8
  %293 = mul i64 %290, %292
  %294 = tail call i64 @llvm.umin.i64(i64 %288, i64 %292)
  %295 = add i64 %294, %293
  %296 = icmp uge i64 %288, %292
  %297 = zext i1 %296 to i64
  %298 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 14
  %299 = load i64, ptr %298, align 8
  %300 = icmp ult i64 %288, %299
  br i1 %300, label %325, label %301

301:                                              ; preds = %271
  %302 = sub i64 %288, %299
  %303 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 16
  %304 = load i64, ptr %303, align 8
  %305 = mul i64 %304, %302
  %306 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 17
  %307 = load i64, ptr %306, align 8
  %308 = add i64 %305, %307
  %309 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 15
  %310 = load i64, ptr %309, align 8
  %311 = urem i64 %308, %310
  %312 = add i64 %311, %299
  br i1 %296, label %325, label %313

313:                                              ; preds = %301
  %314 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 21
  %315 = load double, ptr %314, align 8
  %316 = sitofp i64 %311 to double
  %317 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 20
  %318 = load double, ptr %317, align 8
  %319 = fadd double %318, %316
  %320 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 22
  %321 = load double, ptr %320, align 8
  %322 = fmul double %319, %321
  %323 = fadd double %315, %322
  %324 = getelementptr inbounds double, ptr %10, i64 %22
  store double %323, ptr %324, align 8
  br label %339

325:                                              ; preds = %301, %271
  %326 = phi i64 [ %312, %301 ], [ 0, %271 ]
  %327 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 21
  %328 = load double, ptr %327, align 8
  %329 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 20
  %330 = load double, ptr %329, align 8
  %331 = uitofp i1 %296 to double
  %332 = fmul double %331, 0x3EA0000000000000
  %333 = fadd double %332, %330
  %334 = fmul double %328, %333
  %335 = getelementptr inbounds double, ptr %10, i64 %22
  store double %334, ptr %335, align 8
  br i1 %296, label %336, label %339

336:                                              ; preds = %325
  %337 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 5
  %338 = load i64, ptr %337, align 8
  br label %339

339:                                              ; preds = %313, %336, %325
  %340 = phi i64 [ %326, %336 ], [ %326, %325 ], [ %312, %313 ]
  %341 = phi i64 [ %338, %336 ], [ 0, %325 ], [ 0, %313 ]
  %342 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297
  %343 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 4
  %344 = load i64, ptr %343, align 8
  %345 = sub i64 %295, %344
  %346 = sub i64 %36, %345
  %347 = select i1 %296, i64 %346, i64 %345
  %348 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 13
  %349 = load i64, ptr %348, align 8
  %350 = load i64, ptr %342, align 8
  %351 = sub i64 %349, %350
  %352 = add i64 %351, %347
  %353 = icmp sgt i64 %352, -1
  br i1 %353, label %354, label %381

354:                                              ; preds = %339
  %355 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %356 = load i64, ptr %355, align 8
  %357 = udiv i64 %350, %356
  %358 = tail call i64 @llvm.umax.i64(i64 %357, i64 1)
  %359 = tail call i64 @llvm.umin.i64(i64 %358, i64 %349)
  %360 = udiv i64 %350, %349
  %361 = udiv i64 %352, %359
  %362 = mul i64 %361, %359
  %363 = urem i64 %352, %359
  %364 = udiv i64 %349, %359
  %365 = mul i64 %363, %364
  %366 = mul i64 %364, %359
  %367 = urem i64 %349, %359
  %368 = tail call i64 @llvm.umin.i64(i64 %363, i64 %367)
  %369 = add nuw i64 %361, 1
  %370 = add i64 %369, %365
  %371 = add i64 %370, %368
  %372 = icmp ult i64 %350, 1099511627776
  %373 = mul i64 %360, %349
  %374 = urem i64 %350, %349
  %375 = select i1 %372, i64 %374, i64 0
  %376 = mul i64 %371, %360
  %377 = mul i64 %371, %375
  %378 = udiv i64 %377, %349
  %379 = add i64 %378, -1
  %380 = add i64 %379, %376
  br label %537

381:                                              ; preds = %339
  %382 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 3
  %383 = load i64, ptr %382, align 8
  %384 = udiv i64 %347, %383
  %385 = mul i64 %384, %383
  %386 = urem i64 %347, %383
  %387 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 1
  %388 = load i64, ptr %387, align 8
  %389 = udiv i64 %386, %388
  br i1 %296, label %390, label %397

390:                                              ; preds = %381
  %391 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 10
  %392 = load i64, ptr %391, align 8
  %393 = mul i64 %392, %386
  %394 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 9
  %395 = load i64, ptr %394, align 8
  %396 = urem i64 %393, %395
  br label %397

397:                                              ; preds = %390, %381
  %398 = phi i64 [ %396, %390 ], [ %340, %381 ]
  %399 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 8
  %400 = load i64, ptr %399, align 8
  %401 = udiv i64 %389, %400
  %402 = mul i64 %401, %400
  %403 = urem i64 %389, %400
  %404 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 2
  %405 = load i64, ptr %404, align 8
  %406 = mul i64 %405, %398
  %407 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 9
  %408 = load i64, ptr %407, align 8
  %409 = mul i64 %403, %408
  %410 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 10
  %411 = load i64, ptr %410, align 8
  %412 = tail call i64 @llvm.umin.i64(i64 %403, i64 %411)
  %413 = add i64 %406, %401
  %414 = add i64 %413, %409
  %415 = add i64 %414, %412
  %416 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 6
  %417 = load i64, ptr %416, align 8
  %418 = icmp eq i64 %417, 0
  br i1 %418, label %441, label %419

419:                                              ; preds = %397
  %420 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 11
  %421 = load i64, ptr %420, align 8
  %422 = mul i64 %421, %403
  %423 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 12
  %424 = load i64, ptr %423, align 8
  %425 = tail call i64 @llvm.umin.i64(i64 %403, i64 %424)
  %426 = add i64 %425, %422
  %427 = icmp ult i64 %403, %424
  %428 = zext i1 %427 to i64
  %429 = add i64 %421, %428
  %430 = tail call i64 @llvm.umin.i64(i64 %401, i64 %429)
  %431 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 4
  %432 = load i64, ptr %431, align 8
  %433 = mul i64 %432, %415
  %434 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 7
  %435 = load i64, ptr %434, align 8
  %436 = mul i64 %435, %398
  %437 = add i64 %426, %433
  %438 = add i64 %437, %436
  %439 = add i64 %438, %430
  %440 = icmp ult i64 %389, %435
  br label %450

441:                                              ; preds = %397
  %442 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 4
  %443 = load i64, ptr %442, align 8
  %444 = mul i64 %443, %386
  %445 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 5
  %446 = load i64, ptr %445, align 8
  %447 = tail call i64 @llvm.umin.i64(i64 %386, i64 %446)
  %448 = add i64 %447, %444
  %449 = icmp ult i64 %386, %446
  br label %450

450:                                              ; preds = %441, %419
  %451 = phi i1 [ %449, %441 ], [ %440, %419 ]
  %452 = phi i64 [ %443, %441 ], [ %432, %419 ]
  %453 = phi i64 [ %448, %441 ], [ %439, %419 ]
  %454 = zext i1 %451 to i64
  %455 = add i64 %452, %454
  %456 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 8
  %457 = load i64, ptr %456, align 8
  %458 = select i1 %296, i64 %457, i64 0
  %459 = add i64 %458, %415
  %460 = mul i64 %459, 2654435769
  %461 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 19
  %462 = load i64, ptr %461, align 8
  %463 = add i64 %460, %462
  %464 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %465 = load i64, ptr %464, align 8
  %466 = icmp ugt i64 %465, %455
  br i1 %466, label %507, label %467

467:                                              ; preds = %450
  %468 = and i64 %463, 4294967295
  %469 = udiv i64 %455, %465
  %470 = icmp eq i64 %349, 0
  br i1 %470, label %483, label %471

471:                                              ; preds = %467
  %472 = icmp ult i64 %350, 1099511627776
  %473 = add i64 %453, 1
  %474 = mul i64 %473, %349
  %475 = add i64 %474, -1
  %476 = select i1 %472, i64 %475, i64 %453
  %477 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 15
  %478 = load i64, ptr %477, align 8
  %479 = tail call i64 @llvm.umax.i64(i64 %478, i64 1)
  %480 = udiv i64 %476, %479
  %481 = tail call i64 @llvm.umin.i64(i64 %480, i64 %349)
  %482 = add i64 %481, %453
  br label %483

483:                                              ; preds = %471, %467
  %484 = phi i64 [ %482, %471 ], [ %453, %467 ]
  %485 = urem i64 %484, %465
  %486 = mul i64 %468, %465
  %487 = lshr i64 %486, 32
  %488 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 14
  %489 = load i64, ptr %488, align 8
  %490 = add i64 %489, %487
  %491 = urem i64 %490, %465
  %492 = mul i64 %459, 2447445413
  %493 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 6
  %494 = load i64, ptr %493, align 8
  %495 = lshr i64 %494, 32
  %496 = add i64 %495, %492
  %497 = and i64 %496, 4294967295
  %498 = tail call i64 @llvm.umin.i64(i64 %469, i64 8)
  %499 = mul nuw nsw i64 %497, %498
  %500 = lshr i64 %499, 32
  %501 = sub i64 %491, %485
  %502 = icmp ult i64 %491, %485
  %503 = select i1 %502, i64 %465, i64 0
  %504 = add i64 %501, %503
  %505 = mul i64 %500, %465
  %506 = add i64 %504, %505
  br label %517

507:                                              ; preds = %450
  %508 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 6
  %509 = load i64, ptr %508, align 8
  %510 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 23
  %511 = load i64, ptr %510, align 8
  %512 = mul i64 %511, %509
  %513 = add i64 %512, %463
  %514 = and i64 %513, 4294967295
  %515 = mul i64 %514, %455
  %516 = lshr i64 %515, 32
  br label %517

517:                                              ; preds = %507, %483
  %518 = phi i64 [ %506, %483 ], [ %516, %507 ]
  %519 = add i64 %518, %384
  %520 = icmp ult i64 %519, %455
  %521 = select i1 %520, i64 0, i64 %455
  %522 = sub i64 %519, %521
  %523 = add i64 %522, %453
  %524 = icmp eq i64 %349, 0
  br i1 %524, label %537, label %525

525:                                              ; preds = %517
  %526 = icmp ult i64 %350, 1099511627776
  %527 = add i64 %523, 1
  %528 = mul i64 %527, %349
  %529 = add i64 %528, -1
  %530 = select i1 %526, i64 %529, i64 %523
  %531 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10, i64 %297, i32 15
  %532 = load i64, ptr %531, align 8
  %533 = tail call i64 @llvm.umax.i64(i64 %532, i64 1)
  %534 = udiv i64 %530, %533
  %535 = tail call i64 @llvm.umin.i64(i64 %534, i64 %349)
  %536 = add i64 %535, %523
  br label %537

537:                                              ; preds = %354, %517, %525
  %538 = phi i64 [ %356, %354 ], [ %465, %525 ], [ %465, %517 ]
  %539 = phi i64 [ %380, %354 ], [ %536, %525 ], [ %523, %517 ]
  %540 = add i64 %539, %341
  %541 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 24
  %542 = load i64, ptr %541, align 8
  %543 = icmp eq i64 %542, 0
  br i1 %543, label %590, label %544

544:                                              ; preds = %537
  %545 = load i64, ptr %28, align 8
  %546 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 26
  %547 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 9
  %548 = load i64, ptr %547, align 8
  %549 = icmp ult i64 %545, 64
  %550 = select i1 %549, i64 16, i64 8
  %551 = load i64, ptr %546, align 8
  br label %552

552:                                              ; preds = %556, %544
  %553 = phi i64 [ %540, %544 ], [ %560, %556 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %13) #3
  %554 = urem i64 %553, %551
  store i64 %554, ptr %13, align 16
  %555 = udiv i64 %553, %551
  store i64 %555, ptr %18, align 8
  br label %562

556:                                              ; preds = %562
  %557 = load i64, ptr %18, align 8
  %558 = mul i64 %557, %551
  %559 = load i64, ptr %13, align 16
  %560 = add i64 %558, %559
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %13) #3
  %561 = icmp ult i64 %560, %545
  br i1 %561, label %746, label %552, !llvm.loop !1

562:                                              ; preds = %562, %552
  %563 = phi i64 [ 0, %552 ], [ %588, %562 ]
  %564 = and i64 %563, 1
  %565 = getelementptr inbounds i64, ptr %546, i64 %564
  %566 = load i64, ptr %565, align 8
  %567 = xor i64 %564, 1
  %568 = getelementptr inbounds [2 x i64], ptr %13, i64 0, i64 %567
  %569 = load i64, ptr %568, align 8
  %570 = mul i64 %563, -7046029254386353131
  %571 = add i64 %570, %548
  %572 = xor i64 %569, %571
  %573 = lshr i64 %572, 30
  %574 = xor i64 %573, %572
  %575 = mul i64 %574, -4658895280553007687
  %576 = lshr i64 %575, 27
  %577 = xor i64 %576, %575
  %578 = mul i64 %577, -7723592293110705685
  %579 = getelementptr inbounds [2 x i64], ptr %13, i64 0, i64 %564
  %580 = load i64, ptr %579, align 8
  %581 = lshr i64 %578, 32
  %582 = mul i64 %581, %566
  %583 = lshr i64 %582, 32
  %584 = add i64 %583, %580
  %585 = icmp ult i64 %584, %566
  %586 = select i1 %585, i64 0, i64 %566
  %587 = sub i64 %584, %586
  store i64 %587, ptr %579, align 8
  %588 = add nuw nsw i64 %563, 1
  %589 = icmp eq i64 %588, %550
  br i1 %589, label %556, label %562, !llvm.loop !4

590:                                              ; preds = %537
  %591 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %592 = udiv i64 %540, %538
  %593 = mul i64 %592, %538
  %594 = urem i64 %540, %538
  %595 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 2
  %596 = load i64, ptr %595, align 8
  %597 = icmp ult i64 %592, %596
  %598 = mul i64 %592, 2654435769
  %599 = ptrtoint ptr %28 to i64
  %600 = mul i64 %599, 2447445413
  %601 = xor i64 %598, %600
  %602 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 2
  %603 = load i64, ptr %602, align 8
  %604 = xor i64 %601, %603
  %605 = and i64 %604, %8
  %606 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605
  %607 = load ptr, ptr %606, align 8
  %608 = icmp eq ptr %607, %28
  br i1 %608, label %609, label %622

609:                                              ; preds = %590
  %610 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 1
  %611 = load i64, ptr %610, align 8
  %612 = icmp eq i64 %611, %603
  br i1 %612, label %613, label %622

613:                                              ; preds = %609
  %614 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 2
  %615 = load i64, ptr %614, align 8
  %616 = icmp eq i64 %615, %592
  br i1 %616, label %617, label %622

617:                                              ; preds = %613
  %618 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 4
  %619 = load i64, ptr %618, align 8
  %620 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 3
  %621 = load i64, ptr %620, align 8
  br label %697

622:                                              ; preds = %613, %609, %590
  br i1 %597, label %623, label %668

623:                                              ; preds = %622
  %624 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 25
  %625 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 7
  %626 = load i64, ptr %625, align 8
  %627 = icmp ult i64 %596, 64
  %628 = select i1 %627, i64 16, i64 8
  %629 = load i64, ptr %624, align 8
  br label %630

630:                                              ; preds = %634, %623
  %631 = phi i64 [ %592, %623 ], [ %638, %634 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %12) #3
  %632 = urem i64 %631, %629
  store i64 %632, ptr %12, align 16
  %633 = udiv i64 %631, %629
  store i64 %633, ptr %19, align 8
  br label %640

634:                                              ; preds = %640
  %635 = load i64, ptr %19, align 8
  %636 = mul i64 %635, %629
  %637 = load i64, ptr %12, align 16
  %638 = add i64 %636, %637
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %12) #3
  %639 = icmp ult i64 %638, %596
  br i1 %639, label %668, label %630, !llvm.loop !1

640:                                              ; preds = %640, %630
  %641 = phi i64 [ 0, %630 ], [ %666, %640 ]
  %642 = and i64 %641, 1
  %643 = getelementptr inbounds i64, ptr %624, i64 %642
  %644 = load i64, ptr %643, align 8
  %645 = xor i64 %642, 1
  %646 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %645
  %647 = load i64, ptr %646, align 8
  %648 = mul i64 %641, -7046029254386353131
  %649 = add i64 %648, %626
  %650 = xor i64 %647, %649
  %651 = lshr i64 %650, 30
  %652 = xor i64 %651, %650
  %653 = mul i64 %652, -4658895280553007687
  %654 = lshr i64 %653, 27
  %655 = xor i64 %654, %653
  %656 = mul i64 %655, -7723592293110705685
  %657 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %642
  %658 = load i64, ptr %657, align 8
  %659 = lshr i64 %656, 32
  %660 = mul i64 %659, %644
  %661 = lshr i64 %660, 32
  %662 = add i64 %661, %658
  %663 = icmp ult i64 %662, %644
  %664 = select i1 %663, i64 0, i64 %644
  %665 = sub i64 %662, %664
  store i64 %665, ptr %657, align 8
  %666 = add nuw nsw i64 %641, 1
  %667 = icmp eq i64 %666, %628
  br i1 %667, label %634, label %640, !llvm.loop !4

668:                                              ; preds = %634, %622
  %669 = phi i64 [ %596, %622 ], [ %638, %634 ]
  %670 = mul i64 %669, %538
  %671 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 8
  %672 = load i64, ptr %671, align 8
  %673 = add i64 %672, -7046029254386353131
  %674 = mul i64 %592, -3335678366873096957
  %675 = add i64 %674, -4658895280553007687
  %676 = lshr i64 %675, 30
  %677 = xor i64 %676, %675
  %678 = mul i64 %677, -4658895280553007687
  %679 = lshr i64 %678, 27
  %680 = xor i64 %679, %678
  %681 = mul i64 %680, -7723592293110705685
  %682 = lshr i64 %681, 31
  %683 = xor i64 %682, %673
  %684 = xor i64 %683, %681
  %685 = lshr i64 %684, 30
  %686 = xor i64 %685, %684
  %687 = mul i64 %686, -4658895280553007687
  %688 = lshr i64 %687, 27
  %689 = xor i64 %688, %687
  %690 = mul i64 %689, -7723592293110705685
  %691 = lshr i64 %690, 31
  %692 = xor i64 %691, %690
  store ptr %28, ptr %606, align 8
  %693 = getelementptr inbounds i8, ptr %606, i64 8
  store i64 %603, ptr %693, align 8
  %694 = getelementptr inbounds i8, ptr %606, i64 16
  store i64 %592, ptr %694, align 8
  %695 = getelementptr inbounds i8, ptr %606, i64 24
  store i64 %670, ptr %695, align 8
  %696 = getelementptr inbounds i8, ptr %606, i64 32
  store i64 %692, ptr %696, align 8
  br label %697

697:                                              ; preds = %668, %617
  %698 = phi i64 [ %621, %617 ], [ %670, %668 ]
  %699 = phi i64 [ %619, %617 ], [ %692, %668 ]
  %700 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 3
  %701 = select i1 %597, ptr %591, ptr %700
  %702 = load i64, ptr %701, align 8
  %703 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 5
  %704 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 4
  %705 = select i1 %597, ptr %704, ptr %703
  %706 = load i64, ptr %705, align 8
  %707 = mul i64 %706, %594
  %708 = lshr i64 %699, 32
  %709 = mul i64 %708, %702
  %710 = lshr i64 %709, 32
  %711 = add i64 %710, %707
  %712 = urem i64 %711, %702
  %713 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 23
  %714 = load i64, ptr %713, align 8
  %715 = icmp eq i64 %714, 0
  br i1 %715, label %739, label %716

716:                                              ; preds = %697, %716
  %717 = phi i64 [ %734, %716 ], [ %712, %697 ]
  %718 = phi i32 [ %735, %716 ], [ 0, %697 ]
  %719 = phi i64 [ %722, %716 ], [ %699, %697 ]
  %720 = lshr i64 %719, 29
  %721 = xor i64 %720, %719
  %722 = mul i64 %721, -4658895280553007687
  %723 = lshr i64 %722, 32
  %724 = mul i64 %723, %702
  %725 = lshr i64 %724, 32
  %726 = sub i64 %725, %717
  %727 = add i64 %726, %702
  %728 = tail call i64 @llvm.umin.i64(i64 %726, i64 %727)
  %729 = tail call i64 @llvm.umax.i64(i64 %717, i64 %728)
  %730 = and i64 %729, 63
  %731 = shl nuw i64 1, %730
  %732 = and i64 %731, %722
  %733 = icmp eq i64 %732, 0
  %734 = select i1 %733, i64 %717, i64 %728
  %735 = add nuw nsw i32 %718, 1
  %736 = icmp eq i32 %735, 4
  br i1 %736, label %737, label %716, !llvm.loop !5

737:                                              ; preds = %716
  %738 = add i64 %734, %698
  br label %746

739:                                              ; preds = %697
  %740 = and i64 %699, 1
  %741 = icmp eq i64 %740, 0
  %742 = xor i64 %712, -1
  %743 = add i64 %702, %742
  %744 = select i1 %741, i64 %712, i64 %743
  %745 = add i64 %698, %744
  br label %746

746:                                              ; preds = %556, %737, %739
  %747 = phi i64 [ %738, %737 ], [ %745, %739 ], [ %560, %556 ]
  %748 = getelementptr inbounds i64, ptr %9, i64 %22
  store i64 %747, ptr %748, align 8
  %749 = add nuw i64 %22, 1
  %750 = icmp eq i64 %749, %0
  br i1 %750, label %20, label %21, !llvm.loop !6
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umin.i64(i64, i64) #2

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umax.i64(i64, i64) #2

attributes #0 = { nounwind }
attributes #1 = { nounwind }
attributes #2 = { nounwind }
attributes #3 = { nounwind }


!0 = !{i32 1, !"wchar_size", i32 4}
!1 = distinct !{!1, !2, !3}
!2 = !{!"llvm.loop.mustprogress"}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = distinct !{!4, !2, !3}
!5 = distinct !{!5, !2, !3}
!6 = distinct !{!6, !2, !3}

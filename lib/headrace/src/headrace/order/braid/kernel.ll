; Compiled from kernel.c by scripts/compile_kernels.py: 1c3266eaafd919b30b7aaa50781134bb4a8b8d48df3e567dae88b3bc602a6d10 8ce4c5694e461a4273b3554ec28e43513859cca1a5950adcd812e1ca140ff2a2
%struct.Spec = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, double, double, double, i64, i64, [2 x i64], [2 x i64] }
%struct.Epoch = type { ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, [2 x %struct.Kind] }
%struct.Kind = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.Placed = type { ptr, i64, i64, i64, i64 }

@spec_bytes = dso_local local_unnamed_addr constant i64 232, align 8
@epoch_bytes = dso_local local_unnamed_addr constant i64 344, align 8
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

20:                                               ; preds = %750, %11
  ret void

21:                                               ; preds = %15, %750
  %22 = phi i64 [ 0, %15 ], [ %753, %750 ]
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
  br i1 %48, label %274, label %49

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
  %74 = mul i64 %27, 2447445413
  %75 = xor i64 %72, %74
  %76 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 3
  store i64 %75, ptr %76, align 8
  %77 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 13
  %78 = load i64, ptr %77, align 8
  %79 = and i64 %42, 2097151
  %80 = mul i64 %78, %79
  %81 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 12
  %82 = load i64, ptr %81, align 8
  %83 = urem i64 %80, %82
  %84 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 4
  store i64 %83, ptr %84, align 8
  %85 = load i64, ptr %81, align 8
  %86 = udiv i64 %83, %85
  %87 = mul i64 %86, %85
  %88 = urem i64 %83, %85
  %89 = add i64 %88, 1
  %90 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 11
  %91 = load i64, ptr %90, align 8
  %92 = shl i64 %89, %91
  %93 = add i64 %92, -1
  %94 = udiv i64 %93, %85
  %95 = mul i64 %94, %85
  %96 = lshr i64 %95, %91
  %97 = sub i64 %88, %96
  %98 = shl i64 %86, %91
  %99 = add i64 %98, %94
  %100 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 6
  %101 = load i64, ptr %100, align 8
  %102 = mul i64 %99, %101
  %103 = tail call i64 @llvm.umin.i64(i64 %97, i64 %101)
  %104 = add i64 %103, %102
  %105 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 5
  store i64 %104, ptr %105, align 8
  %106 = load i64, ptr %28, align 8
  %107 = add i64 %106, %83
  %108 = load i64, ptr %81, align 8
  %109 = udiv i64 %107, %108
  %110 = mul i64 %109, %108
  %111 = urem i64 %107, %108
  %112 = add i64 %111, 1
  %113 = load i64, ptr %90, align 8
  %114 = shl i64 %112, %113
  %115 = add i64 %114, -1
  %116 = udiv i64 %115, %108
  %117 = mul i64 %116, %108
  %118 = lshr i64 %117, %113
  %119 = sub i64 %111, %118
  %120 = shl i64 %109, %113
  %121 = add i64 %120, %116
  %122 = load i64, ptr %100, align 8
  %123 = mul i64 %121, %122
  %124 = tail call i64 @llvm.umin.i64(i64 %119, i64 %122)
  %125 = sub i64 %123, %104
  %126 = add i64 %124, %125
  %127 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 6
  store i64 %126, ptr %127, align 8
  %128 = add i64 %72, -7046029254386353131
  %129 = xor i64 %128, -5099307698220928417
  %130 = lshr i64 %129, 30
  %131 = xor i64 %130, %129
  %132 = mul i64 %131, -4658895280553007687
  %133 = lshr i64 %132, 27
  %134 = xor i64 %133, %132
  %135 = mul i64 %134, -7723592293110705685
  %136 = lshr i64 %135, 31
  %137 = xor i64 %136, %135
  %138 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 7
  store i64 %137, ptr %138, align 8
  %139 = xor i64 %128, -2339995689698515380
  %140 = lshr i64 %139, 30
  %141 = xor i64 %140, %139
  %142 = mul i64 %141, -4658895280553007687
  %143 = lshr i64 %142, 27
  %144 = xor i64 %143, %142
  %145 = mul i64 %144, -7723592293110705685
  %146 = lshr i64 %145, 31
  %147 = xor i64 %146, %145
  %148 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 8
  store i64 %147, ptr %148, align 8
  %149 = xor i64 %128, 4834670637226298483
  %150 = lshr i64 %149, 30
  %151 = xor i64 %150, %149
  %152 = mul i64 %151, -4658895280553007687
  %153 = lshr i64 %152, 27
  %154 = xor i64 %153, %152
  %155 = mul i64 %154, -7723592293110705685
  %156 = lshr i64 %155, 31
  %157 = xor i64 %156, %155
  %158 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 9
  store i64 %157, ptr %158, align 8
  %159 = xor i64 %128, 165690204361845564
  %160 = lshr i64 %159, 30
  %161 = xor i64 %160, %159
  %162 = mul i64 %161, -4658895280553007687
  %163 = lshr i64 %162, 27
  %164 = xor i64 %163, %162
  %165 = mul i64 %164, -7723592293110705685
  %166 = lshr i64 %165, 31
  %167 = xor i64 %166, %165
  %168 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10
  store i64 %167, ptr %168, align 8
  %169 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11
  %170 = load i64, ptr %100, align 8
  %171 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 7
  %172 = load i64, ptr %171, align 8
  %173 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %174 = load i64, ptr %173, align 8
  store i64 %126, ptr %169, align 8
  %175 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 1
  store i64 %170, ptr %175, align 8
  %176 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 2
  store i64 %172, ptr %176, align 8
  %177 = mul i64 %172, %170
  %178 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 3
  store i64 %177, ptr %178, align 8
  %179 = icmp eq i64 %177, 0
  br i1 %179, label %226, label %180

180:                                              ; preds = %49
  %181 = udiv i64 %126, %177
  %182 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 4
  store i64 %181, ptr %182, align 8
  %183 = mul i64 %181, %177
  %184 = urem i64 %126, %177
  %185 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 5
  store i64 %184, ptr %185, align 8
  %186 = shl i64 %174, 4
  %187 = icmp ult i64 %181, %186
  %188 = zext i1 %187 to i64
  %189 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 6
  store i64 %188, ptr %189, align 8
  br i1 %187, label %190, label %192

190:                                              ; preds = %180
  %191 = udiv i64 %184, %170
  br label %192

192:                                              ; preds = %190, %180
  %193 = phi i64 [ %191, %190 ], [ 0, %180 ]
  %194 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 7
  store i64 %193, ptr %194, align 8
  %195 = mul i64 %181, %172
  %196 = udiv i64 %195, %174
  %197 = tail call i64 @llvm.umax.i64(i64 %196, i64 1)
  %198 = tail call i64 @llvm.umin.i64(i64 %197, i64 %172)
  %199 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 8
  store i64 %198, ptr %199, align 8
  %200 = udiv i64 %172, %198
  %201 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 9
  store i64 %200, ptr %201, align 8
  %202 = mul i64 %200, %198
  %203 = urem i64 %172, %198
  %204 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 10
  store i64 %203, ptr %204, align 8
  %205 = udiv i64 %193, %198
  %206 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 11
  store i64 %205, ptr %206, align 8
  %207 = mul i64 %205, %198
  %208 = urem i64 %193, %198
  %209 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 12
  store i64 %208, ptr %209, align 8
  %210 = mul i64 %193, %170
  %211 = sub i64 %184, %210
  %212 = select i1 %187, i64 %211, i64 0
  %213 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 13
  store i64 %212, ptr %213, align 8
  %214 = udiv i64 %104, %177
  %215 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 14
  store i64 %214, ptr %215, align 8
  %216 = icmp ult i64 %126, 1099511627776
  br i1 %216, label %217, label %219

217:                                              ; preds = %192
  %218 = sub i64 %126, %212
  br label %223

219:                                              ; preds = %192
  %220 = tail call i64 @llvm.umax.i64(i64 %212, i64 1)
  %221 = udiv i64 %126, %220
  %222 = add i64 %221, -1
  br label %223

223:                                              ; preds = %219, %217
  %224 = phi i64 [ %218, %217 ], [ %222, %219 ]
  %225 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 0, i32 15
  store i64 %224, ptr %225, align 8
  br label %226

226:                                              ; preds = %223, %49
  %227 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1
  %228 = load i64, ptr %28, align 8
  %229 = sub i64 %228, %126
  %230 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 9
  %231 = load i64, ptr %230, align 8
  %232 = sub i64 %83, %104
  %233 = load i64, ptr %173, align 8
  store i64 %229, ptr %227, align 8
  %234 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 1
  store i64 %231, ptr %234, align 8
  %235 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 2
  store i64 1, ptr %235, align 8
  %236 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 3
  store i64 %231, ptr %236, align 8
  %237 = icmp eq i64 %231, 0
  br i1 %237, label %274, label %238

238:                                              ; preds = %226
  %239 = udiv i64 %229, %231
  %240 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 4
  store i64 %239, ptr %240, align 8
  %241 = mul i64 %239, %231
  %242 = urem i64 %229, %231
  %243 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 5
  store i64 %242, ptr %243, align 8
  %244 = shl i64 %233, 4
  %245 = icmp ult i64 %239, %244
  %246 = zext i1 %245 to i64
  %247 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 6
  store i64 %246, ptr %247, align 8
  br i1 %245, label %248, label %250

248:                                              ; preds = %238
  %249 = udiv i64 %242, %231
  br label %250

250:                                              ; preds = %248, %238
  %251 = phi i64 [ %249, %248 ], [ 0, %238 ]
  %252 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 7
  store i64 %251, ptr %252, align 8
  %253 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 8
  store i64 1, ptr %253, align 8
  %254 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 9
  store i64 1, ptr %254, align 8
  %255 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 10
  store i64 0, ptr %255, align 8
  %256 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 11
  store i64 %251, ptr %256, align 8
  %257 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 12
  store i64 0, ptr %257, align 8
  %258 = mul i64 %251, %231
  %259 = sub i64 %242, %258
  %260 = select i1 %245, i64 %259, i64 0
  %261 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 13
  store i64 %260, ptr %261, align 8
  %262 = udiv i64 %232, %231
  %263 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 14
  store i64 %262, ptr %263, align 8
  %264 = icmp ult i64 %229, 1099511627776
  br i1 %264, label %265, label %267

265:                                              ; preds = %250
  %266 = sub i64 %229, %260
  br label %271

267:                                              ; preds = %250
  %268 = tail call i64 @llvm.umax.i64(i64 %260, i64 1)
  %269 = udiv i64 %229, %268
  %270 = add i64 %269, -1
  br label %271

271:                                              ; preds = %267, %265
  %272 = phi i64 [ %266, %265 ], [ %270, %267 ]
  %273 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 1, i32 15
  store i64 %272, ptr %273, align 8
  br label %274

274:                                              ; preds = %271, %226, %45
  %275 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 4
  %276 = load i64, ptr %275, align 8
  %277 = add i64 %276, %36
  %278 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 12
  %279 = load i64, ptr %278, align 8
  %280 = udiv i64 %277, %279
  %281 = mul i64 %280, %279
  %282 = urem i64 %277, %279
  %283 = add i64 %282, 1
  %284 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 11
  %285 = load i64, ptr %284, align 8
  %286 = shl i64 %283, %285
  %287 = add i64 %286, -1
  %288 = udiv i64 %287, %279
  %289 = mul i64 %288, %279
  %290 = lshr i64 %289, %285
  %291 = sub i64 %282, %290
  %292 = shl i64 %280, %285
  %293 = add i64 %292, %288
  %294 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 6
  %295 = load i64, ptr %294, align 8
  %296 = mul i64 %293, %295
  %297 = tail call i64 @llvm.umin.i64(i64 %291, i64 %295)
  %298 = add i64 %297, %296
  %299 = icmp uge i64 %291, %295
  %300 = zext i1 %299 to i64
  %301 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 14
  %302 = load i64, ptr %301, align 8
  %303 = icmp ult i64 %291, %302
  br i1 %303, label %328, label %304

304:                                              ; preds = %274
  %305 = sub i64 %291, %302
  %306 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 16
  %307 = load i64, ptr %306, align 8
  %308 = mul i64 %307, %305
  %309 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 17
  %310 = load i64, ptr %309, align 8
  %311 = add i64 %308, %310
  %312 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 15
  %313 = load i64, ptr %312, align 8
  %314 = urem i64 %311, %313
  %315 = add i64 %314, %302
  br i1 %299, label %328, label %316

316:                                              ; preds = %304
  %317 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 21
  %318 = load double, ptr %317, align 8
  %319 = sitofp i64 %314 to double
  %320 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 20
  %321 = load double, ptr %320, align 8
  %322 = fadd double %321, %319
  %323 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 22
  %324 = load double, ptr %323, align 8
  %325 = fmul double %322, %324
  %326 = fadd double %318, %325
  %327 = getelementptr inbounds double, ptr %10, i64 %22
  store double %326, ptr %327, align 8
  br label %342

328:                                              ; preds = %304, %274
  %329 = phi i64 [ %315, %304 ], [ 0, %274 ]
  %330 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 21
  %331 = load double, ptr %330, align 8
  %332 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 20
  %333 = load double, ptr %332, align 8
  %334 = uitofp i1 %299 to double
  %335 = fmul double %334, 0x3EA0000000000000
  %336 = fadd double %335, %333
  %337 = fmul double %331, %336
  %338 = getelementptr inbounds double, ptr %10, i64 %22
  store double %337, ptr %338, align 8
  br i1 %299, label %339, label %342

339:                                              ; preds = %328
  %340 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 6
  %341 = load i64, ptr %340, align 8
  br label %342

342:                                              ; preds = %316, %339, %328
  %343 = phi i64 [ %329, %339 ], [ %329, %328 ], [ %315, %316 ]
  %344 = phi i64 [ %341, %339 ], [ 0, %328 ], [ 0, %316 ]
  %345 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300
  %346 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 5
  %347 = load i64, ptr %346, align 8
  %348 = sub i64 %298, %347
  %349 = sub i64 %36, %348
  %350 = select i1 %299, i64 %349, i64 %348
  %351 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 13
  %352 = load i64, ptr %351, align 8
  %353 = load i64, ptr %345, align 8
  %354 = sub i64 %352, %353
  %355 = add i64 %354, %350
  %356 = icmp sgt i64 %355, -1
  br i1 %356, label %357, label %384

357:                                              ; preds = %342
  %358 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %359 = load i64, ptr %358, align 8
  %360 = udiv i64 %353, %359
  %361 = tail call i64 @llvm.umax.i64(i64 %360, i64 1)
  %362 = tail call i64 @llvm.umin.i64(i64 %361, i64 %352)
  %363 = udiv i64 %353, %352
  %364 = udiv i64 %355, %362
  %365 = mul i64 %364, %362
  %366 = urem i64 %355, %362
  %367 = udiv i64 %352, %362
  %368 = mul i64 %366, %367
  %369 = mul i64 %367, %362
  %370 = urem i64 %352, %362
  %371 = tail call i64 @llvm.umin.i64(i64 %366, i64 %370)
  %372 = add nuw i64 %364, 1
  %373 = add i64 %372, %368
  %374 = add i64 %373, %371
  %375 = icmp ult i64 %353, 1099511627776
  %376 = mul i64 %363, %352
  %377 = urem i64 %353, %352
  %378 = select i1 %375, i64 %377, i64 0
  %379 = mul i64 %374, %363
  %380 = mul i64 %374, %378
  %381 = udiv i64 %380, %352
  %382 = add i64 %381, -1
  %383 = add i64 %382, %379
  br label %540

384:                                              ; preds = %342
  %385 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 3
  %386 = load i64, ptr %385, align 8
  %387 = udiv i64 %350, %386
  %388 = mul i64 %387, %386
  %389 = urem i64 %350, %386
  %390 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 1
  %391 = load i64, ptr %390, align 8
  %392 = udiv i64 %389, %391
  br i1 %299, label %393, label %400

393:                                              ; preds = %384
  %394 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 10
  %395 = load i64, ptr %394, align 8
  %396 = mul i64 %395, %389
  %397 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 9
  %398 = load i64, ptr %397, align 8
  %399 = urem i64 %396, %398
  br label %400

400:                                              ; preds = %393, %384
  %401 = phi i64 [ %399, %393 ], [ %343, %384 ]
  %402 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 8
  %403 = load i64, ptr %402, align 8
  %404 = udiv i64 %392, %403
  %405 = mul i64 %404, %403
  %406 = urem i64 %392, %403
  %407 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 2
  %408 = load i64, ptr %407, align 8
  %409 = mul i64 %408, %401
  %410 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 9
  %411 = load i64, ptr %410, align 8
  %412 = mul i64 %406, %411
  %413 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 10
  %414 = load i64, ptr %413, align 8
  %415 = tail call i64 @llvm.umin.i64(i64 %406, i64 %414)
  %416 = add i64 %409, %404
  %417 = add i64 %416, %412
  %418 = add i64 %417, %415
  %419 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 6
  %420 = load i64, ptr %419, align 8
  %421 = icmp eq i64 %420, 0
  br i1 %421, label %444, label %422

422:                                              ; preds = %400
  %423 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 11
  %424 = load i64, ptr %423, align 8
  %425 = mul i64 %424, %406
  %426 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 12
  %427 = load i64, ptr %426, align 8
  %428 = tail call i64 @llvm.umin.i64(i64 %406, i64 %427)
  %429 = add i64 %428, %425
  %430 = icmp ult i64 %406, %427
  %431 = zext i1 %430 to i64
  %432 = add i64 %424, %431
  %433 = tail call i64 @llvm.umin.i64(i64 %404, i64 %432)
  %434 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 4
  %435 = load i64, ptr %434, align 8
  %436 = mul i64 %435, %418
  %437 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 7
  %438 = load i64, ptr %437, align 8
  %439 = mul i64 %438, %401
  %440 = add i64 %429, %436
  %441 = add i64 %440, %439
  %442 = add i64 %441, %433
  %443 = icmp ult i64 %392, %438
  br label %453

444:                                              ; preds = %400
  %445 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 4
  %446 = load i64, ptr %445, align 8
  %447 = mul i64 %446, %389
  %448 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 5
  %449 = load i64, ptr %448, align 8
  %450 = tail call i64 @llvm.umin.i64(i64 %389, i64 %449)
  %451 = add i64 %450, %447
  %452 = icmp ult i64 %389, %449
  br label %453

453:                                              ; preds = %444, %422
  %454 = phi i1 [ %452, %444 ], [ %443, %422 ]
  %455 = phi i64 [ %446, %444 ], [ %435, %422 ]
  %456 = phi i64 [ %451, %444 ], [ %442, %422 ]
  %457 = zext i1 %454 to i64
  %458 = add i64 %455, %457
  %459 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 8
  %460 = load i64, ptr %459, align 8
  %461 = select i1 %299, i64 %460, i64 0
  %462 = add i64 %461, %418
  %463 = mul i64 %462, 2654435769
  %464 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 19
  %465 = load i64, ptr %464, align 8
  %466 = add i64 %463, %465
  %467 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %468 = load i64, ptr %467, align 8
  %469 = icmp ugt i64 %468, %458
  br i1 %469, label %510, label %470

470:                                              ; preds = %453
  %471 = and i64 %466, 4294967295
  %472 = udiv i64 %458, %468
  %473 = icmp eq i64 %352, 0
  br i1 %473, label %486, label %474

474:                                              ; preds = %470
  %475 = icmp ult i64 %353, 1099511627776
  %476 = add i64 %456, 1
  %477 = mul i64 %476, %352
  %478 = add i64 %477, -1
  %479 = select i1 %475, i64 %478, i64 %456
  %480 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 15
  %481 = load i64, ptr %480, align 8
  %482 = tail call i64 @llvm.umax.i64(i64 %481, i64 1)
  %483 = udiv i64 %479, %482
  %484 = tail call i64 @llvm.umin.i64(i64 %483, i64 %352)
  %485 = add i64 %484, %456
  br label %486

486:                                              ; preds = %474, %470
  %487 = phi i64 [ %485, %474 ], [ %456, %470 ]
  %488 = urem i64 %487, %468
  %489 = mul i64 %471, %468
  %490 = lshr i64 %489, 32
  %491 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 14
  %492 = load i64, ptr %491, align 8
  %493 = add i64 %492, %490
  %494 = urem i64 %493, %468
  %495 = mul i64 %462, 2447445413
  %496 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 7
  %497 = load i64, ptr %496, align 8
  %498 = lshr i64 %497, 32
  %499 = add i64 %498, %495
  %500 = and i64 %499, 4294967295
  %501 = tail call i64 @llvm.umin.i64(i64 %472, i64 8)
  %502 = mul nuw nsw i64 %500, %501
  %503 = lshr i64 %502, 32
  %504 = sub i64 %494, %488
  %505 = icmp ult i64 %494, %488
  %506 = select i1 %505, i64 %468, i64 0
  %507 = add i64 %504, %506
  %508 = mul i64 %503, %468
  %509 = add i64 %507, %508
  br label %520

510:                                              ; preds = %453
  %511 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 7
  %512 = load i64, ptr %511, align 8
  %513 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 23
  %514 = load i64, ptr %513, align 8
  %515 = mul i64 %514, %512
  %516 = add i64 %515, %466
  %517 = and i64 %516, 4294967295
  %518 = mul i64 %517, %458
  %519 = lshr i64 %518, 32
  br label %520

520:                                              ; preds = %510, %486
  %521 = phi i64 [ %509, %486 ], [ %519, %510 ]
  %522 = add i64 %521, %387
  %523 = icmp ult i64 %522, %458
  %524 = select i1 %523, i64 0, i64 %458
  %525 = sub i64 %522, %524
  %526 = add i64 %525, %456
  %527 = icmp eq i64 %352, 0
  br i1 %527, label %540, label %528

528:                                              ; preds = %520
  %529 = icmp ult i64 %353, 1099511627776
  %530 = add i64 %526, 1
  %531 = mul i64 %530, %352
  %532 = add i64 %531, -1
  %533 = select i1 %529, i64 %532, i64 %526
  %534 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 11, i64 %300, i32 15
  %535 = load i64, ptr %534, align 8
  %536 = tail call i64 @llvm.umax.i64(i64 %535, i64 1)
  %537 = udiv i64 %533, %536
  %538 = tail call i64 @llvm.umin.i64(i64 %537, i64 %352)
  %539 = add i64 %538, %526
  br label %540

540:                                              ; preds = %357, %520, %528
  %541 = phi i64 [ %359, %357 ], [ %468, %528 ], [ %468, %520 ]
  %542 = phi i64 [ %383, %357 ], [ %539, %528 ], [ %526, %520 ]
  %543 = add i64 %542, %344
  %544 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 24
  %545 = load i64, ptr %544, align 8
  %546 = icmp eq i64 %545, 0
  br i1 %546, label %593, label %547

547:                                              ; preds = %540
  %548 = load i64, ptr %28, align 8
  %549 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 26
  %550 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 10
  %551 = load i64, ptr %550, align 8
  %552 = icmp ult i64 %548, 64
  %553 = select i1 %552, i64 16, i64 8
  %554 = load i64, ptr %549, align 8
  br label %555

555:                                              ; preds = %559, %547
  %556 = phi i64 [ %543, %547 ], [ %563, %559 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %13) #3
  %557 = urem i64 %556, %554
  store i64 %557, ptr %13, align 16
  %558 = udiv i64 %556, %554
  store i64 %558, ptr %18, align 8
  br label %565

559:                                              ; preds = %565
  %560 = load i64, ptr %18, align 8
  %561 = mul i64 %560, %554
  %562 = load i64, ptr %13, align 16
  %563 = add i64 %561, %562
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %13) #3
  %564 = icmp ult i64 %563, %548
  br i1 %564, label %750, label %555, !llvm.loop !1

565:                                              ; preds = %565, %555
  %566 = phi i64 [ 0, %555 ], [ %591, %565 ]
  %567 = and i64 %566, 1
  %568 = getelementptr inbounds i64, ptr %549, i64 %567
  %569 = load i64, ptr %568, align 8
  %570 = xor i64 %567, 1
  %571 = getelementptr inbounds [2 x i64], ptr %13, i64 0, i64 %570
  %572 = load i64, ptr %571, align 8
  %573 = mul i64 %566, -7046029254386353131
  %574 = add i64 %573, %551
  %575 = xor i64 %572, %574
  %576 = lshr i64 %575, 30
  %577 = xor i64 %576, %575
  %578 = mul i64 %577, -4658895280553007687
  %579 = lshr i64 %578, 27
  %580 = xor i64 %579, %578
  %581 = mul i64 %580, -7723592293110705685
  %582 = getelementptr inbounds [2 x i64], ptr %13, i64 0, i64 %567
  %583 = load i64, ptr %582, align 8
  %584 = lshr i64 %581, 32
  %585 = mul i64 %584, %569
  %586 = lshr i64 %585, 32
  %587 = add i64 %586, %583
  %588 = icmp ult i64 %587, %569
  %589 = select i1 %588, i64 0, i64 %569
  %590 = sub i64 %587, %589
  store i64 %590, ptr %582, align 8
  %591 = add nuw nsw i64 %566, 1
  %592 = icmp eq i64 %591, %553
  br i1 %592, label %559, label %565, !llvm.loop !4

593:                                              ; preds = %540
  %594 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 1
  %595 = udiv i64 %543, %541
  %596 = mul i64 %595, %541
  %597 = urem i64 %543, %541
  %598 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 2
  %599 = load i64, ptr %598, align 8
  %600 = icmp ult i64 %595, %599
  %601 = mul i64 %595, 2654435769
  %602 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 3
  %603 = load i64, ptr %602, align 8
  %604 = xor i64 %603, %601
  %605 = and i64 %604, %8
  %606 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605
  %607 = load ptr, ptr %606, align 8
  %608 = icmp eq ptr %607, %28
  br i1 %608, label %609, label %624

609:                                              ; preds = %593
  %610 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 1
  %611 = load i64, ptr %610, align 8
  %612 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 2
  %613 = load i64, ptr %612, align 8
  %614 = icmp eq i64 %611, %613
  br i1 %614, label %615, label %624

615:                                              ; preds = %609
  %616 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 2
  %617 = load i64, ptr %616, align 8
  %618 = icmp eq i64 %617, %595
  br i1 %618, label %619, label %624

619:                                              ; preds = %615
  %620 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 4
  %621 = load i64, ptr %620, align 8
  %622 = getelementptr inbounds %struct.Placed, ptr %7, i64 %605, i32 3
  %623 = load i64, ptr %622, align 8
  br label %701

624:                                              ; preds = %615, %609, %593
  br i1 %600, label %625, label %670

625:                                              ; preds = %624
  %626 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 25
  %627 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 8
  %628 = load i64, ptr %627, align 8
  %629 = icmp ult i64 %599, 64
  %630 = select i1 %629, i64 16, i64 8
  %631 = load i64, ptr %626, align 8
  br label %632

632:                                              ; preds = %636, %625
  %633 = phi i64 [ %595, %625 ], [ %640, %636 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %12) #3
  %634 = urem i64 %633, %631
  store i64 %634, ptr %12, align 16
  %635 = udiv i64 %633, %631
  store i64 %635, ptr %19, align 8
  br label %642

636:                                              ; preds = %642
  %637 = load i64, ptr %19, align 8
  %638 = mul i64 %637, %631
  %639 = load i64, ptr %12, align 16
  %640 = add i64 %638, %639
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %12) #3
  %641 = icmp ult i64 %640, %599
  br i1 %641, label %670, label %632, !llvm.loop !1

642:                                              ; preds = %642, %632
  %643 = phi i64 [ 0, %632 ], [ %668, %642 ]
  %644 = and i64 %643, 1
  %645 = getelementptr inbounds i64, ptr %626, i64 %644
  %646 = load i64, ptr %645, align 8
  %647 = xor i64 %644, 1
  %648 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %647
  %649 = load i64, ptr %648, align 8
  %650 = mul i64 %643, -7046029254386353131
  %651 = add i64 %650, %628
  %652 = xor i64 %649, %651
  %653 = lshr i64 %652, 30
  %654 = xor i64 %653, %652
  %655 = mul i64 %654, -4658895280553007687
  %656 = lshr i64 %655, 27
  %657 = xor i64 %656, %655
  %658 = mul i64 %657, -7723592293110705685
  %659 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %644
  %660 = load i64, ptr %659, align 8
  %661 = lshr i64 %658, 32
  %662 = mul i64 %661, %646
  %663 = lshr i64 %662, 32
  %664 = add i64 %663, %660
  %665 = icmp ult i64 %664, %646
  %666 = select i1 %665, i64 0, i64 %646
  %667 = sub i64 %664, %666
  store i64 %667, ptr %659, align 8
  %668 = add nuw nsw i64 %643, 1
  %669 = icmp eq i64 %668, %630
  br i1 %669, label %636, label %642, !llvm.loop !4

670:                                              ; preds = %636, %624
  %671 = phi i64 [ %599, %624 ], [ %640, %636 ]
  %672 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 2
  %673 = load i64, ptr %672, align 8
  %674 = mul i64 %671, %541
  %675 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %29, i32 9
  %676 = load i64, ptr %675, align 8
  %677 = add i64 %676, -7046029254386353131
  %678 = mul i64 %595, -3335678366873096957
  %679 = add i64 %678, -4658895280553007687
  %680 = lshr i64 %679, 30
  %681 = xor i64 %680, %679
  %682 = mul i64 %681, -4658895280553007687
  %683 = lshr i64 %682, 27
  %684 = xor i64 %683, %682
  %685 = mul i64 %684, -7723592293110705685
  %686 = lshr i64 %685, 31
  %687 = xor i64 %686, %677
  %688 = xor i64 %687, %685
  %689 = lshr i64 %688, 30
  %690 = xor i64 %689, %688
  %691 = mul i64 %690, -4658895280553007687
  %692 = lshr i64 %691, 27
  %693 = xor i64 %692, %691
  %694 = mul i64 %693, -7723592293110705685
  %695 = lshr i64 %694, 31
  %696 = xor i64 %695, %694
  store ptr %28, ptr %606, align 8
  %697 = getelementptr inbounds i8, ptr %606, i64 8
  store i64 %673, ptr %697, align 8
  %698 = getelementptr inbounds i8, ptr %606, i64 16
  store i64 %595, ptr %698, align 8
  %699 = getelementptr inbounds i8, ptr %606, i64 24
  store i64 %674, ptr %699, align 8
  %700 = getelementptr inbounds i8, ptr %606, i64 32
  store i64 %696, ptr %700, align 8
  br label %701

701:                                              ; preds = %670, %619
  %702 = phi i64 [ %623, %619 ], [ %674, %670 ]
  %703 = phi i64 [ %621, %619 ], [ %696, %670 ]
  %704 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 3
  %705 = select i1 %600, ptr %594, ptr %704
  %706 = load i64, ptr %705, align 8
  %707 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 5
  %708 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 4
  %709 = select i1 %600, ptr %708, ptr %707
  %710 = load i64, ptr %709, align 8
  %711 = mul i64 %710, %597
  %712 = lshr i64 %703, 32
  %713 = mul i64 %712, %706
  %714 = lshr i64 %713, 32
  %715 = add i64 %714, %711
  %716 = urem i64 %715, %706
  %717 = getelementptr inbounds %struct.Spec, ptr %1, i64 %27, i32 23
  %718 = load i64, ptr %717, align 8
  %719 = icmp eq i64 %718, 0
  br i1 %719, label %743, label %720

720:                                              ; preds = %701, %720
  %721 = phi i64 [ %738, %720 ], [ %716, %701 ]
  %722 = phi i32 [ %739, %720 ], [ 0, %701 ]
  %723 = phi i64 [ %726, %720 ], [ %703, %701 ]
  %724 = lshr i64 %723, 29
  %725 = xor i64 %724, %723
  %726 = mul i64 %725, -4658895280553007687
  %727 = lshr i64 %726, 32
  %728 = mul i64 %727, %706
  %729 = lshr i64 %728, 32
  %730 = sub i64 %729, %721
  %731 = add i64 %730, %706
  %732 = tail call i64 @llvm.umin.i64(i64 %730, i64 %731)
  %733 = tail call i64 @llvm.umax.i64(i64 %721, i64 %732)
  %734 = and i64 %733, 63
  %735 = shl nuw i64 1, %734
  %736 = and i64 %735, %726
  %737 = icmp eq i64 %736, 0
  %738 = select i1 %737, i64 %721, i64 %732
  %739 = add nuw nsw i32 %722, 1
  %740 = icmp eq i32 %739, 4
  br i1 %740, label %741, label %720, !llvm.loop !5

741:                                              ; preds = %720
  %742 = add i64 %738, %702
  br label %750

743:                                              ; preds = %701
  %744 = and i64 %703, 1
  %745 = icmp eq i64 %744, 0
  %746 = xor i64 %716, -1
  %747 = add i64 %706, %746
  %748 = select i1 %745, i64 %716, i64 %747
  %749 = add i64 %702, %748
  br label %750

750:                                              ; preds = %559, %741, %743
  %751 = phi i64 [ %742, %741 ], [ %749, %743 ], [ %563, %559 ]
  %752 = getelementptr inbounds i64, ptr %9, i64 %22
  store i64 %751, ptr %752, align 8
  %753 = add nuw i64 %22, 1
  %754 = icmp eq i64 %753, %0
  br i1 %754, label %20, label %21, !llvm.loop !6
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

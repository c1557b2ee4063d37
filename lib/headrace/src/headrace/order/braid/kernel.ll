; Compiled from kernel.c by scripts/compile_kernels.py: c80d0ac2c772a5470f4cd8c2dc508375152a79871e038819cff199d09f94a968
%struct.Spec = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, double, double, double, i64, i64, [2 x i64], [2 x i64] }
%struct.Epoch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, [2 x %struct.Kind], i64 }
%struct.Kind = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.Placed = type { ptr, i64, i64, i64, i64 }

; Function Attrs: nofree nosync nounwind memory(read, argmem: readwrite, inaccessiblemem: none)
define dso_local void @braid_rows(i64 noundef %0, ptr noundef %1, ptr noundef readonly %2, ptr nocapture noundef readonly %3, ptr noundef readonly %4, ptr noundef %5, ptr nocapture noundef %6, i64 noundef %7, ptr nocapture noundef writeonly %8, ptr nocapture noundef writeonly %9) local_unnamed_addr #0 {
  %11 = alloca [2 x i64], align 16
  %12 = alloca [2 x i64], align 16
  %13 = icmp eq i64 %0, 0
  br i1 %13, label %19, label %14

14:                                               ; preds = %10
  %15 = icmp eq ptr %2, null
  %16 = icmp eq ptr %4, null
  %17 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 1
  %18 = getelementptr inbounds [2 x i64], ptr %11, i64 0, i64 1
  br label %20

19:                                               ; preds = %740, %10
  ret void

20:                                               ; preds = %14, %740
  %21 = phi i64 [ 0, %14 ], [ %743, %740 ]
  br i1 %15, label %25, label %22

22:                                               ; preds = %20
  %23 = getelementptr inbounds i64, ptr %2, i64 %21
  %24 = load i64, ptr %23, align 8
  br label %25

25:                                               ; preds = %20, %22
  %26 = phi i64 [ %24, %22 ], [ 0, %20 ]
  %27 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26
  %28 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26
  %29 = getelementptr inbounds i64, ptr %3, i64 %21
  %30 = load i64, ptr %29, align 8
  %31 = load i64, ptr %27, align 8
  %32 = udiv i64 %30, %31
  %33 = mul i64 %32, %31
  %34 = urem i64 %30, %31
  br i1 %16, label %38, label %35

35:                                               ; preds = %25
  %36 = getelementptr inbounds i64, ptr %4, i64 %21
  %37 = load i64, ptr %36, align 8
  br label %38

38:                                               ; preds = %25, %35
  %39 = phi i64 [ %37, %35 ], [ 0, %25 ]
  %40 = add i64 %39, %32
  %41 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 1
  %42 = load i64, ptr %41, align 8
  %43 = icmp eq i64 %42, 0
  br i1 %43, label %47, label %44

44:                                               ; preds = %38
  %45 = load i64, ptr %28, align 8
  %46 = icmp eq i64 %45, %40
  br i1 %46, label %268, label %47

47:                                               ; preds = %44, %38
  store i64 %40, ptr %28, align 8
  store i64 1, ptr %41, align 8
  %48 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 18
  %49 = load i64, ptr %48, align 8
  %50 = add i64 %49, -7046029254386353131
  %51 = mul i64 %40, -3335678366873096957
  %52 = add i64 %51, -4658895280553007687
  %53 = lshr i64 %52, 30
  %54 = xor i64 %53, %52
  %55 = mul i64 %54, -4658895280553007687
  %56 = lshr i64 %55, 27
  %57 = xor i64 %56, %55
  %58 = mul i64 %57, -7723592293110705685
  %59 = lshr i64 %58, 31
  %60 = xor i64 %59, %50
  %61 = xor i64 %60, %58
  %62 = lshr i64 %61, 30
  %63 = xor i64 %62, %61
  %64 = mul i64 %63, -4658895280553007687
  %65 = lshr i64 %64, 27
  %66 = xor i64 %65, %64
  %67 = mul i64 %66, -7723592293110705685
  %68 = lshr i64 %67, 31
  %69 = xor i64 %68, %67
  %70 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 10
  store i64 %69, ptr %70, align 8
  %71 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 13
  %72 = load i64, ptr %71, align 8
  %73 = and i64 %40, 2097151
  %74 = mul i64 %72, %73
  %75 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 12
  %76 = load i64, ptr %75, align 8
  %77 = urem i64 %74, %76
  %78 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 2
  store i64 %77, ptr %78, align 8
  %79 = load i64, ptr %75, align 8
  %80 = udiv i64 %77, %79
  %81 = mul i64 %80, %79
  %82 = urem i64 %77, %79
  %83 = add i64 %82, 1
  %84 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 11
  %85 = load i64, ptr %84, align 8
  %86 = shl i64 %83, %85
  %87 = add i64 %86, -1
  %88 = udiv i64 %87, %79
  %89 = mul i64 %88, %79
  %90 = lshr i64 %89, %85
  %91 = sub i64 %82, %90
  %92 = shl i64 %80, %85
  %93 = add i64 %92, %88
  %94 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 6
  %95 = load i64, ptr %94, align 8
  %96 = mul i64 %93, %95
  %97 = tail call i64 @llvm.umin.i64(i64 %91, i64 %95)
  %98 = add i64 %97, %96
  %99 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 3
  store i64 %98, ptr %99, align 8
  %100 = load i64, ptr %27, align 8
  %101 = add i64 %100, %77
  %102 = load i64, ptr %75, align 8
  %103 = udiv i64 %101, %102
  %104 = mul i64 %103, %102
  %105 = urem i64 %101, %102
  %106 = add i64 %105, 1
  %107 = load i64, ptr %84, align 8
  %108 = shl i64 %106, %107
  %109 = add i64 %108, -1
  %110 = udiv i64 %109, %102
  %111 = mul i64 %110, %102
  %112 = lshr i64 %111, %107
  %113 = sub i64 %105, %112
  %114 = shl i64 %103, %107
  %115 = add i64 %114, %110
  %116 = load i64, ptr %94, align 8
  %117 = mul i64 %115, %116
  %118 = tail call i64 @llvm.umin.i64(i64 %113, i64 %116)
  %119 = sub i64 %117, %98
  %120 = add i64 %118, %119
  %121 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 4
  store i64 %120, ptr %121, align 8
  %122 = add i64 %69, -7046029254386353131
  %123 = xor i64 %122, -5099307698220928417
  %124 = lshr i64 %123, 30
  %125 = xor i64 %124, %123
  %126 = mul i64 %125, -4658895280553007687
  %127 = lshr i64 %126, 27
  %128 = xor i64 %127, %126
  %129 = mul i64 %128, -7723592293110705685
  %130 = lshr i64 %129, 31
  %131 = xor i64 %130, %129
  %132 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 5
  store i64 %131, ptr %132, align 8
  %133 = xor i64 %122, -2339995689698515380
  %134 = lshr i64 %133, 30
  %135 = xor i64 %134, %133
  %136 = mul i64 %135, -4658895280553007687
  %137 = lshr i64 %136, 27
  %138 = xor i64 %137, %136
  %139 = mul i64 %138, -7723592293110705685
  %140 = lshr i64 %139, 31
  %141 = xor i64 %140, %139
  %142 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 6
  store i64 %141, ptr %142, align 8
  %143 = xor i64 %122, 4834670637226298483
  %144 = lshr i64 %143, 30
  %145 = xor i64 %144, %143
  %146 = mul i64 %145, -4658895280553007687
  %147 = lshr i64 %146, 27
  %148 = xor i64 %147, %146
  %149 = mul i64 %148, -7723592293110705685
  %150 = lshr i64 %149, 31
  %151 = xor i64 %150, %149
  %152 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 7
  store i64 %151, ptr %152, align 8
  %153 = xor i64 %122, 165690204361845564
  %154 = lshr i64 %153, 30
  %155 = xor i64 %154, %153
  %156 = mul i64 %155, -4658895280553007687
  %157 = lshr i64 %156, 27
  %158 = xor i64 %157, %156
  %159 = mul i64 %158, -7723592293110705685
  %160 = lshr i64 %159, 31
  %161 = xor i64 %160, %159
  %162 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 8
  store i64 %161, ptr %162, align 8
  %163 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9
  %164 = load i64, ptr %94, align 8
  %165 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 7
  %166 = load i64, ptr %165, align 8
  %167 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 1
  %168 = load i64, ptr %167, align 8
  store i64 %120, ptr %163, align 8
  %169 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 1
  store i64 %164, ptr %169, align 8
  %170 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 2
  store i64 %166, ptr %170, align 8
  %171 = mul i64 %166, %164
  %172 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 3
  store i64 %171, ptr %172, align 8
  %173 = icmp eq i64 %171, 0
  br i1 %173, label %220, label %174

174:                                              ; preds = %47
  %175 = udiv i64 %120, %171
  %176 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 4
  store i64 %175, ptr %176, align 8
  %177 = mul i64 %175, %171
  %178 = urem i64 %120, %171
  %179 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 5
  store i64 %178, ptr %179, align 8
  %180 = shl i64 %168, 4
  %181 = icmp ult i64 %175, %180
  %182 = zext i1 %181 to i64
  %183 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 6
  store i64 %182, ptr %183, align 8
  br i1 %181, label %184, label %186

184:                                              ; preds = %174
  %185 = udiv i64 %178, %164
  br label %186

186:                                              ; preds = %184, %174
  %187 = phi i64 [ %185, %184 ], [ 0, %174 ]
  %188 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 7
  store i64 %187, ptr %188, align 8
  %189 = mul i64 %175, %166
  %190 = udiv i64 %189, %168
  %191 = tail call i64 @llvm.umax.i64(i64 %190, i64 1)
  %192 = tail call i64 @llvm.umin.i64(i64 %191, i64 %166)
  %193 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 8
  store i64 %192, ptr %193, align 8
  %194 = udiv i64 %166, %192
  %195 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 9
  store i64 %194, ptr %195, align 8
  %196 = mul i64 %194, %192
  %197 = urem i64 %166, %192
  %198 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 10
  store i64 %197, ptr %198, align 8
  %199 = udiv i64 %187, %192
  %200 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 11
  store i64 %199, ptr %200, align 8
  %201 = mul i64 %199, %192
  %202 = urem i64 %187, %192
  %203 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 12
  store i64 %202, ptr %203, align 8
  %204 = mul i64 %187, %164
  %205 = sub i64 %178, %204
  %206 = select i1 %181, i64 %205, i64 0
  %207 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 13
  store i64 %206, ptr %207, align 8
  %208 = udiv i64 %98, %171
  %209 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 14
  store i64 %208, ptr %209, align 8
  %210 = icmp ult i64 %120, 1099511627776
  br i1 %210, label %211, label %213

211:                                              ; preds = %186
  %212 = sub i64 %120, %206
  br label %217

213:                                              ; preds = %186
  %214 = tail call i64 @llvm.umax.i64(i64 %206, i64 1)
  %215 = udiv i64 %120, %214
  %216 = add i64 %215, -1
  br label %217

217:                                              ; preds = %213, %211
  %218 = phi i64 [ %212, %211 ], [ %216, %213 ]
  %219 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 0, i32 15
  store i64 %218, ptr %219, align 8
  br label %220

220:                                              ; preds = %217, %47
  %221 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1
  %222 = load i64, ptr %27, align 8
  %223 = sub i64 %222, %120
  %224 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 9
  %225 = load i64, ptr %224, align 8
  %226 = sub i64 %77, %98
  %227 = load i64, ptr %167, align 8
  store i64 %223, ptr %221, align 8
  %228 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 1
  store i64 %225, ptr %228, align 8
  %229 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 2
  store i64 1, ptr %229, align 8
  %230 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 3
  store i64 %225, ptr %230, align 8
  %231 = icmp eq i64 %225, 0
  br i1 %231, label %268, label %232

232:                                              ; preds = %220
  %233 = udiv i64 %223, %225
  %234 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 4
  store i64 %233, ptr %234, align 8
  %235 = mul i64 %233, %225
  %236 = urem i64 %223, %225
  %237 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 5
  store i64 %236, ptr %237, align 8
  %238 = shl i64 %227, 4
  %239 = icmp ult i64 %233, %238
  %240 = zext i1 %239 to i64
  %241 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 6
  store i64 %240, ptr %241, align 8
  br i1 %239, label %242, label %244

242:                                              ; preds = %232
  %243 = udiv i64 %236, %225
  br label %244

244:                                              ; preds = %242, %232
  %245 = phi i64 [ %243, %242 ], [ 0, %232 ]
  %246 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 7
  store i64 %245, ptr %246, align 8
  %247 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 8
  store i64 1, ptr %247, align 8
  %248 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 9
  store i64 1, ptr %248, align 8
  %249 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 10
  store i64 0, ptr %249, align 8
  %250 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 11
  store i64 %245, ptr %250, align 8
  %251 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 12
  store i64 0, ptr %251, align 8
  %252 = mul i64 %245, %225
  %253 = sub i64 %236, %252
  %254 = select i1 %239, i64 %253, i64 0
  %255 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 13
  store i64 %254, ptr %255, align 8
  %256 = udiv i64 %226, %225
  %257 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 14
  store i64 %256, ptr %257, align 8
  %258 = icmp ult i64 %223, 1099511627776
  br i1 %258, label %259, label %261

259:                                              ; preds = %244
  %260 = sub i64 %223, %254
  br label %265

261:                                              ; preds = %244
  %262 = tail call i64 @llvm.umax.i64(i64 %254, i64 1)
  %263 = udiv i64 %223, %262
  %264 = add i64 %263, -1
  br label %265

265:                                              ; preds = %261, %259
  %266 = phi i64 [ %260, %259 ], [ %264, %261 ]
  %267 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 1, i32 15
  store i64 %266, ptr %267, align 8
  br label %268

268:                                              ; preds = %265, %220, %44
  %269 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 2
  %270 = load i64, ptr %269, align 8
  %271 = add i64 %270, %34
  %272 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 12
  %273 = load i64, ptr %272, align 8
  %274 = udiv i64 %271, %273
  %275 = mul i64 %274, %273
  %276 = urem i64 %271, %273
  %277 = add i64 %276, 1
  %278 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 11
  %279 = load i64, ptr %278, align 8
  %280 = shl i64 %277, %279
  %281 = add i64 %280, -1
  %282 = udiv i64 %281, %273
  %283 = mul i64 %282, %273
  %284 = lshr i64 %283, %279
  %285 = sub i64 %276, %284
  %286 = shl i64 %274, %279
  %287 = add i64 %286, %282
  %288 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 6
  %289 = load i64, ptr %288, align 8
  %290 = mul i64 %287, %289
  %291 = tail call i64 @llvm.umin.i64(i64 %285, i64 %289)
  %292 = add i64 %291, %290
  %293 = icmp uge i64 %285, %289
  %294 = zext i1 %293 to i64
  %295 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 14
  %296 = load i64, ptr %295, align 8
  %297 = icmp ult i64 %285, %296
  br i1 %297, label %322, label %298

298:                                              ; preds = %268
  %299 = sub i64 %285, %296
  %300 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 16
  %301 = load i64, ptr %300, align 8
  %302 = mul i64 %301, %299
  %303 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 17
  %304 = load i64, ptr %303, align 8
  %305 = add i64 %302, %304
  %306 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 15
  %307 = load i64, ptr %306, align 8
  %308 = urem i64 %305, %307
  %309 = add i64 %308, %296
  br i1 %293, label %322, label %310

310:                                              ; preds = %298
  %311 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 21
  %312 = load double, ptr %311, align 8
  %313 = sitofp i64 %308 to double
  %314 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 20
  %315 = load double, ptr %314, align 8
  %316 = fadd double %315, %313
  %317 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 22
  %318 = load double, ptr %317, align 8
  %319 = fmul double %316, %318
  %320 = fadd double %312, %319
  %321 = getelementptr inbounds double, ptr %9, i64 %21
  store double %320, ptr %321, align 8
  br label %336

322:                                              ; preds = %298, %268
  %323 = phi i64 [ %309, %298 ], [ 0, %268 ]
  %324 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 21
  %325 = load double, ptr %324, align 8
  %326 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 20
  %327 = load double, ptr %326, align 8
  %328 = uitofp i1 %293 to double
  %329 = fmul double %328, 0x3EA0000000000000
  %330 = fadd double %329, %327
  %331 = fmul double %325, %330
  %332 = getelementptr inbounds double, ptr %9, i64 %21
  store double %331, ptr %332, align 8
  br i1 %293, label %333, label %336

333:                                              ; preds = %322
  %334 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 4
  %335 = load i64, ptr %334, align 8
  br label %336

336:                                              ; preds = %310, %333, %322
  %337 = phi i64 [ %323, %333 ], [ %323, %322 ], [ %309, %310 ]
  %338 = phi i64 [ %335, %333 ], [ 0, %322 ], [ 0, %310 ]
  %339 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294
  %340 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 3
  %341 = load i64, ptr %340, align 8
  %342 = sub i64 %292, %341
  %343 = sub i64 %34, %342
  %344 = select i1 %293, i64 %343, i64 %342
  %345 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 13
  %346 = load i64, ptr %345, align 8
  %347 = load i64, ptr %339, align 8
  %348 = sub i64 %346, %347
  %349 = add i64 %348, %344
  %350 = icmp sgt i64 %349, -1
  br i1 %350, label %351, label %378

351:                                              ; preds = %336
  %352 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 1
  %353 = load i64, ptr %352, align 8
  %354 = udiv i64 %347, %353
  %355 = tail call i64 @llvm.umax.i64(i64 %354, i64 1)
  %356 = tail call i64 @llvm.umin.i64(i64 %355, i64 %346)
  %357 = udiv i64 %347, %346
  %358 = udiv i64 %349, %356
  %359 = mul i64 %358, %356
  %360 = urem i64 %349, %356
  %361 = udiv i64 %346, %356
  %362 = mul i64 %360, %361
  %363 = mul i64 %361, %356
  %364 = urem i64 %346, %356
  %365 = tail call i64 @llvm.umin.i64(i64 %360, i64 %364)
  %366 = add nuw i64 %358, 1
  %367 = add i64 %366, %362
  %368 = add i64 %367, %365
  %369 = icmp ult i64 %347, 1099511627776
  %370 = mul i64 %357, %346
  %371 = urem i64 %347, %346
  %372 = select i1 %369, i64 %371, i64 0
  %373 = mul i64 %368, %357
  %374 = mul i64 %368, %372
  %375 = udiv i64 %374, %346
  %376 = add i64 %375, -1
  %377 = add i64 %376, %373
  br label %534

378:                                              ; preds = %336
  %379 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 3
  %380 = load i64, ptr %379, align 8
  %381 = udiv i64 %344, %380
  %382 = mul i64 %381, %380
  %383 = urem i64 %344, %380
  %384 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 1
  %385 = load i64, ptr %384, align 8
  %386 = udiv i64 %383, %385
  br i1 %293, label %387, label %394

387:                                              ; preds = %378
  %388 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 10
  %389 = load i64, ptr %388, align 8
  %390 = mul i64 %389, %383
  %391 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 9
  %392 = load i64, ptr %391, align 8
  %393 = urem i64 %390, %392
  br label %394

394:                                              ; preds = %387, %378
  %395 = phi i64 [ %393, %387 ], [ %337, %378 ]
  %396 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 8
  %397 = load i64, ptr %396, align 8
  %398 = udiv i64 %386, %397
  %399 = mul i64 %398, %397
  %400 = urem i64 %386, %397
  %401 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 2
  %402 = load i64, ptr %401, align 8
  %403 = mul i64 %402, %395
  %404 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 9
  %405 = load i64, ptr %404, align 8
  %406 = mul i64 %400, %405
  %407 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 10
  %408 = load i64, ptr %407, align 8
  %409 = tail call i64 @llvm.umin.i64(i64 %400, i64 %408)
  %410 = add i64 %403, %398
  %411 = add i64 %410, %406
  %412 = add i64 %411, %409
  %413 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 6
  %414 = load i64, ptr %413, align 8
  %415 = icmp eq i64 %414, 0
  br i1 %415, label %438, label %416

416:                                              ; preds = %394
  %417 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 11
  %418 = load i64, ptr %417, align 8
  %419 = mul i64 %418, %400
  %420 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 12
  %421 = load i64, ptr %420, align 8
  %422 = tail call i64 @llvm.umin.i64(i64 %400, i64 %421)
  %423 = add i64 %422, %419
  %424 = icmp ult i64 %400, %421
  %425 = zext i1 %424 to i64
  %426 = add i64 %418, %425
  %427 = tail call i64 @llvm.umin.i64(i64 %398, i64 %426)
  %428 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 4
  %429 = load i64, ptr %428, align 8
  %430 = mul i64 %429, %412
  %431 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 7
  %432 = load i64, ptr %431, align 8
  %433 = mul i64 %432, %395
  %434 = add i64 %423, %430
  %435 = add i64 %434, %433
  %436 = add i64 %435, %427
  %437 = icmp ult i64 %386, %432
  br label %447

438:                                              ; preds = %394
  %439 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 4
  %440 = load i64, ptr %439, align 8
  %441 = mul i64 %440, %383
  %442 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 5
  %443 = load i64, ptr %442, align 8
  %444 = tail call i64 @llvm.umin.i64(i64 %383, i64 %443)
  %445 = add i64 %444, %441
  %446 = icmp ult i64 %383, %443
  br label %447

447:                                              ; preds = %438, %416
  %448 = phi i1 [ %446, %438 ], [ %437, %416 ]
  %449 = phi i64 [ %440, %438 ], [ %429, %416 ]
  %450 = phi i64 [ %445, %438 ], [ %436, %416 ]
  %451 = zext i1 %448 to i64
  %452 = add i64 %449, %451
  %453 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 8
  %454 = load i64, ptr %453, align 8
  %455 = select i1 %293, i64 %454, i64 0
  %456 = add i64 %455, %412
  %457 = mul i64 %456, 2654435769
  %458 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 19
  %459 = load i64, ptr %458, align 8
  %460 = add i64 %457, %459
  %461 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 1
  %462 = load i64, ptr %461, align 8
  %463 = icmp ugt i64 %462, %452
  br i1 %463, label %504, label %464

464:                                              ; preds = %447
  %465 = and i64 %460, 4294967295
  %466 = udiv i64 %452, %462
  %467 = icmp eq i64 %346, 0
  br i1 %467, label %480, label %468

468:                                              ; preds = %464
  %469 = icmp ult i64 %347, 1099511627776
  %470 = add i64 %450, 1
  %471 = mul i64 %470, %346
  %472 = add i64 %471, -1
  %473 = select i1 %469, i64 %472, i64 %450
  %474 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 15
  %475 = load i64, ptr %474, align 8
  %476 = tail call i64 @llvm.umax.i64(i64 %475, i64 1)
  %477 = udiv i64 %473, %476
  %478 = tail call i64 @llvm.umin.i64(i64 %477, i64 %346)
  %479 = add i64 %478, %450
  br label %480

480:                                              ; preds = %468, %464
  %481 = phi i64 [ %479, %468 ], [ %450, %464 ]
  %482 = urem i64 %481, %462
  %483 = mul i64 %465, %462
  %484 = lshr i64 %483, 32
  %485 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 14
  %486 = load i64, ptr %485, align 8
  %487 = add i64 %486, %484
  %488 = urem i64 %487, %462
  %489 = mul i64 %456, 2447445413
  %490 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 5
  %491 = load i64, ptr %490, align 8
  %492 = lshr i64 %491, 32
  %493 = add i64 %492, %489
  %494 = and i64 %493, 4294967295
  %495 = tail call i64 @llvm.umin.i64(i64 %466, i64 8)
  %496 = mul nuw nsw i64 %494, %495
  %497 = lshr i64 %496, 32
  %498 = sub i64 %488, %482
  %499 = icmp ult i64 %488, %482
  %500 = select i1 %499, i64 %462, i64 0
  %501 = add i64 %498, %500
  %502 = mul i64 %497, %462
  %503 = add i64 %501, %502
  br label %514

504:                                              ; preds = %447
  %505 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 5
  %506 = load i64, ptr %505, align 8
  %507 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 23
  %508 = load i64, ptr %507, align 8
  %509 = mul i64 %508, %506
  %510 = add i64 %509, %460
  %511 = and i64 %510, 4294967295
  %512 = mul i64 %511, %452
  %513 = lshr i64 %512, 32
  br label %514

514:                                              ; preds = %504, %480
  %515 = phi i64 [ %503, %480 ], [ %513, %504 ]
  %516 = add i64 %515, %381
  %517 = icmp ult i64 %516, %452
  %518 = select i1 %517, i64 0, i64 %452
  %519 = sub i64 %516, %518
  %520 = add i64 %519, %450
  %521 = icmp eq i64 %346, 0
  br i1 %521, label %534, label %522

522:                                              ; preds = %514
  %523 = icmp ult i64 %347, 1099511627776
  %524 = add i64 %520, 1
  %525 = mul i64 %524, %346
  %526 = add i64 %525, -1
  %527 = select i1 %523, i64 %526, i64 %520
  %528 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 9, i64 %294, i32 15
  %529 = load i64, ptr %528, align 8
  %530 = tail call i64 @llvm.umax.i64(i64 %529, i64 1)
  %531 = udiv i64 %527, %530
  %532 = tail call i64 @llvm.umin.i64(i64 %531, i64 %346)
  %533 = add i64 %532, %520
  br label %534

534:                                              ; preds = %351, %514, %522
  %535 = phi i64 [ %353, %351 ], [ %462, %522 ], [ %462, %514 ]
  %536 = phi i64 [ %377, %351 ], [ %533, %522 ], [ %520, %514 ]
  %537 = add i64 %536, %338
  %538 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 24
  %539 = load i64, ptr %538, align 8
  %540 = icmp eq i64 %539, 0
  br i1 %540, label %587, label %541

541:                                              ; preds = %534
  %542 = load i64, ptr %27, align 8
  %543 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 26
  %544 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 8
  %545 = load i64, ptr %544, align 8
  %546 = icmp ult i64 %542, 64
  %547 = select i1 %546, i64 16, i64 8
  %548 = load i64, ptr %543, align 8
  br label %549

549:                                              ; preds = %553, %541
  %550 = phi i64 [ %537, %541 ], [ %557, %553 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %12) #3
  %551 = urem i64 %550, %548
  store i64 %551, ptr %12, align 16
  %552 = udiv i64 %550, %548
  store i64 %552, ptr %17, align 8
  br label %559

553:                                              ; preds = %559
  %554 = load i64, ptr %17, align 8
  %555 = mul i64 %554, %548
  %556 = load i64, ptr %12, align 16
  %557 = add i64 %555, %556
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %12) #3
  %558 = icmp ult i64 %557, %542
  br i1 %558, label %740, label %549, !llvm.loop !1

559:                                              ; preds = %559, %549
  %560 = phi i64 [ 0, %549 ], [ %585, %559 ]
  %561 = and i64 %560, 1
  %562 = getelementptr inbounds i64, ptr %543, i64 %561
  %563 = load i64, ptr %562, align 8
  %564 = xor i64 %561, 1
  %565 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %564
  %566 = load i64, ptr %565, align 8
  %567 = mul i64 %560, -7046029254386353131
  %568 = add i64 %567, %545
  %569 = xor i64 %566, %568
  %570 = lshr i64 %569, 30
  %571 = xor i64 %570, %569
  %572 = mul i64 %571, -4658895280553007687
  %573 = lshr i64 %572, 27
  %574 = xor i64 %573, %572
  %575 = mul i64 %574, -7723592293110705685
  %576 = getelementptr inbounds [2 x i64], ptr %12, i64 0, i64 %561
  %577 = load i64, ptr %576, align 8
  %578 = lshr i64 %575, 32
  %579 = mul i64 %578, %563
  %580 = lshr i64 %579, 32
  %581 = add i64 %580, %577
  %582 = icmp ult i64 %581, %563
  %583 = select i1 %582, i64 0, i64 %563
  %584 = sub i64 %581, %583
  store i64 %584, ptr %576, align 8
  %585 = add nuw nsw i64 %560, 1
  %586 = icmp eq i64 %585, %547
  br i1 %586, label %553, label %559, !llvm.loop !4

587:                                              ; preds = %534
  %588 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 1
  %589 = udiv i64 %537, %535
  %590 = mul i64 %589, %535
  %591 = urem i64 %537, %535
  %592 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 2
  %593 = load i64, ptr %592, align 8
  %594 = icmp ult i64 %589, %593
  %595 = mul i64 %589, 2654435769
  %596 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 10
  %597 = load i64, ptr %596, align 8
  %598 = xor i64 %597, %595
  %599 = and i64 %598, %7
  %600 = getelementptr inbounds %struct.Placed, ptr %6, i64 %599
  %601 = load ptr, ptr %600, align 8
  %602 = icmp eq ptr %601, %27
  br i1 %602, label %603, label %616

603:                                              ; preds = %587
  %604 = getelementptr inbounds %struct.Placed, ptr %6, i64 %599, i32 1
  %605 = load i64, ptr %604, align 8
  %606 = icmp eq i64 %605, %597
  br i1 %606, label %607, label %616

607:                                              ; preds = %603
  %608 = getelementptr inbounds %struct.Placed, ptr %6, i64 %599, i32 2
  %609 = load i64, ptr %608, align 8
  %610 = icmp eq i64 %609, %589
  br i1 %610, label %611, label %616

611:                                              ; preds = %607
  %612 = getelementptr inbounds %struct.Placed, ptr %6, i64 %599, i32 4
  %613 = load i64, ptr %612, align 8
  %614 = getelementptr inbounds %struct.Placed, ptr %6, i64 %599, i32 3
  %615 = load i64, ptr %614, align 8
  br label %691

616:                                              ; preds = %607, %603, %587
  br i1 %594, label %617, label %662

617:                                              ; preds = %616
  %618 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 25
  %619 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 6
  %620 = load i64, ptr %619, align 8
  %621 = icmp ult i64 %593, 64
  %622 = select i1 %621, i64 16, i64 8
  %623 = load i64, ptr %618, align 8
  br label %624

624:                                              ; preds = %628, %617
  %625 = phi i64 [ %589, %617 ], [ %632, %628 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %11) #3
  %626 = urem i64 %625, %623
  store i64 %626, ptr %11, align 16
  %627 = udiv i64 %625, %623
  store i64 %627, ptr %18, align 8
  br label %634

628:                                              ; preds = %634
  %629 = load i64, ptr %18, align 8
  %630 = mul i64 %629, %623
  %631 = load i64, ptr %11, align 16
  %632 = add i64 %630, %631
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %11) #3
  %633 = icmp ult i64 %632, %593
  br i1 %633, label %662, label %624, !llvm.loop !1

634:                                              ; preds = %634, %624
  %635 = phi i64 [ 0, %624 ], [ %660, %634 ]
  %636 = and i64 %635, 1
  %637 = getelementptr inbounds i64, ptr %618, i64 %636
  %638 = load i64, ptr %637, align 8
  %639 = xor i64 %636, 1
  %640 = getelementptr inbounds [2 x i64], ptr %11, i64 0, i64 %639
  %641 = load i64, ptr %640, align 8
  %642 = mul i64 %635, -7046029254386353131
  %643 = add i64 %642, %620
  %644 = xor i64 %641, %643
  %645 = lshr i64 %644, 30
  %646 = xor i64 %645, %644
  %647 = mul i64 %646, -4658895280553007687
  %648 = lshr i64 %647, 27
  %649 = xor i64 %648, %647
  %650 = mul i64 %649, -7723592293110705685
  %651 = getelementptr inbounds [2 x i64], ptr %11, i64 0, i64 %636
  %652 = load i64, ptr %651, align 8
  %653 = lshr i64 %650, 32
  %654 = mul i64 %653, %638
  %655 = lshr i64 %654, 32
  %656 = add i64 %655, %652
  %657 = icmp ult i64 %656, %638
  %658 = select i1 %657, i64 0, i64 %638
  %659 = sub i64 %656, %658
  store i64 %659, ptr %651, align 8
  %660 = add nuw nsw i64 %635, 1
  %661 = icmp eq i64 %660, %622
  br i1 %661, label %628, label %634, !llvm.loop !4

662:                                              ; preds = %628, %616
  %663 = phi i64 [ %593, %616 ], [ %632, %628 ]
  %664 = mul i64 %663, %535
  %665 = getelementptr inbounds %struct.Epoch, ptr %5, i64 %26, i32 7
  %666 = load i64, ptr %665, align 8
  %667 = add i64 %666, -7046029254386353131
  %668 = mul i64 %589, -3335678366873096957
  %669 = add i64 %668, -4658895280553007687
  %670 = lshr i64 %669, 30
  %671 = xor i64 %670, %669
  %672 = mul i64 %671, -4658895280553007687
  %673 = lshr i64 %672, 27
  %674 = xor i64 %673, %672
  %675 = mul i64 %674, -7723592293110705685
  %676 = lshr i64 %675, 31
  %677 = xor i64 %676, %667
  %678 = xor i64 %677, %675
  %679 = lshr i64 %678, 30
  %680 = xor i64 %679, %678
  %681 = mul i64 %680, -4658895280553007687
  %682 = lshr i64 %681, 27
  %683 = xor i64 %682, %681
  %684 = mul i64 %683, -7723592293110705685
  %685 = lshr i64 %684, 31
  %686 = xor i64 %685, %684
  store ptr %27, ptr %600, align 8
  %687 = getelementptr inbounds i8, ptr %600, i64 8
  store i64 %597, ptr %687, align 8
  %688 = getelementptr inbounds i8, ptr %600, i64 16
  store i64 %589, ptr %688, align 8
  %689 = getelementptr inbounds i8, ptr %600, i64 24
  store i64 %664, ptr %689, align 8
  %690 = getelementptr inbounds i8, ptr %600, i64 32
  store i64 %686, ptr %690, align 8
  br label %691

691:                                              ; preds = %662, %611
  %692 = phi i64 [ %615, %611 ], [ %664, %662 ]
  %693 = phi i64 [ %613, %611 ], [ %686, %662 ]
  %694 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 3
  %695 = select i1 %594, ptr %588, ptr %694
  %696 = load i64, ptr %695, align 8
  %697 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 5
  %698 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 4
  %699 = select i1 %594, ptr %698, ptr %697
  %700 = load i64, ptr %699, align 8
  %701 = mul i64 %700, %591
  %702 = lshr i64 %693, 32
  %703 = mul i64 %702, %696
  %704 = lshr i64 %703, 32
  %705 = add i64 %704, %701
  %706 = urem i64 %705, %696
  %707 = getelementptr inbounds %struct.Spec, ptr %1, i64 %26, i32 23
  %708 = load i64, ptr %707, align 8
  %709 = icmp eq i64 %708, 0
  br i1 %709, label %733, label %710

710:                                              ; preds = %691, %710
  %711 = phi i64 [ %728, %710 ], [ %706, %691 ]
  %712 = phi i32 [ %729, %710 ], [ 0, %691 ]
  %713 = phi i64 [ %716, %710 ], [ %693, %691 ]
  %714 = lshr i64 %713, 29
  %715 = xor i64 %714, %713
  %716 = mul i64 %715, -4658895280553007687
  %717 = lshr i64 %716, 32
  %718 = mul i64 %717, %696
  %719 = lshr i64 %718, 32
  %720 = sub i64 %719, %711
  %721 = add i64 %720, %696
  %722 = tail call i64 @llvm.umin.i64(i64 %720, i64 %721)
  %723 = tail call i64 @llvm.umax.i64(i64 %711, i64 %722)
  %724 = and i64 %723, 63
  %725 = shl nuw i64 1, %724
  %726 = and i64 %725, %716
  %727 = icmp eq i64 %726, 0
  %728 = select i1 %727, i64 %711, i64 %722
  %729 = add nuw nsw i32 %712, 1
  %730 = icmp eq i32 %729, 4
  br i1 %730, label %731, label %710, !llvm.loop !5

731:                                              ; preds = %710
  %732 = add i64 %728, %692
  br label %740

733:                                              ; preds = %691
  %734 = and i64 %693, 1
  %735 = icmp eq i64 %734, 0
  %736 = xor i64 %706, -1
  %737 = add i64 %696, %736
  %738 = select i1 %735, i64 %706, i64 %737
  %739 = add i64 %692, %738
  br label %740

740:                                              ; preds = %553, %731, %733
  %741 = phi i64 [ %732, %731 ], [ %739, %733 ], [ %557, %553 ]
  %742 = getelementptr inbounds i64, ptr %8, i64 %21
  store i64 %741, ptr %742, align 8
  %743 = add nuw i64 %21, 1
  %744 = icmp eq i64 %743, %0
  br i1 %744, label %19, label %20, !llvm.loop !6
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

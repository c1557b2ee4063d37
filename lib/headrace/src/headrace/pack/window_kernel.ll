; Compiled from window_kernel.c by scripts/compile_kernels.py: f812961980267e7663b0b7a628f8b7f802fdcb0426875a2a8bd6cc916f19618c a400e40a5b9ba34042eab1a9431fc44ac886f9c22bd7d5edf9f7b3195072e599
@words_beside = dso_local local_unnamed_addr constant i64 16, align 8

; Function Attrs: nofree nosync nounwind memory(readwrite, inaccessiblemem: none)
define dso_local i64 @pack_windows(i64 noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readonly %2, ptr nocapture noundef readonly %3, i64 noundef %4, i64 noundef %5, i64 noundef %6, i64 noundef %7, ptr nocapture noundef %8, ptr nocapture noundef writeonly %9, ptr noundef %10, ptr nocapture noundef %11, ptr noundef %12, ptr noundef %13, ptr noundef %14, i64 noundef %15) local_unnamed_addr #0 {
  %17 = sdiv i64 %4, 64
  %18 = add nsw i64 %17, 17
  %19 = getelementptr inbounds i64, ptr %12, i64 %15
  %20 = shl nsw i64 %15, 1
  %21 = getelementptr inbounds i64, ptr %12, i64 %20
  %22 = mul nsw i64 %15, 3
  %23 = getelementptr inbounds i64, ptr %12, i64 %22
  %24 = icmp ne i64 %7, 0
  %25 = icmp eq i64 %7, 0
  %26 = getelementptr inbounds i64, ptr %2, i64 %0
  %27 = icmp eq ptr %10, null
  %28 = sub nsw i64 -17, %17
  %29 = getelementptr inbounds i64, ptr %2, i64 %0
  br label %30

30:                                               ; preds = %427, %16
  %31 = phi i64 [ 0, %16 ], [ %62, %427 ]
  %32 = phi i64 [ 0, %16 ], [ %414, %427 ]
  %33 = phi ptr [ %8, %16 ], [ %415, %427 ]
  %34 = icmp slt i64 %31, %0
  br i1 %34, label %48, label %35

35:                                               ; preds = %30
  %36 = icmp eq i64 %31, %0
  %37 = and i1 %24, %36
  br i1 %37, label %38, label %47

38:                                               ; preds = %35
  %39 = load i64, ptr %11, align 8
  %40 = icmp eq i64 %39, 0
  br i1 %40, label %47, label %41

41:                                               ; preds = %38
  %42 = tail call i64 @llvm.smin.i64(i64 %31, i64 %0)
  %43 = getelementptr inbounds i64, ptr %2, i64 %42
  %44 = load i64, ptr %43, align 8
  %45 = add nuw nsw i64 %31, 1
  %46 = load i64, ptr %29, align 8
  br label %54

47:                                               ; preds = %35, %38
  ret i64 %32

48:                                               ; preds = %30
  %49 = getelementptr inbounds i64, ptr %2, i64 %31
  %50 = load i64, ptr %49, align 8
  %51 = add nuw nsw i64 %31, 1
  %52 = getelementptr inbounds i64, ptr %2, i64 %51
  %53 = load i64, ptr %52, align 8
  br i1 %25, label %60, label %54

54:                                               ; preds = %41, %48
  %55 = phi i64 [ %46, %41 ], [ %53, %48 ]
  %56 = phi i64 [ %45, %41 ], [ %51, %48 ]
  %57 = phi i64 [ %44, %41 ], [ %50, %48 ]
  %58 = load i64, ptr %26, align 8
  %59 = icmp eq i64 %55, %58
  br label %60

60:                                               ; preds = %54, %48
  %61 = phi i64 [ %53, %48 ], [ %55, %54 ]
  %62 = phi i64 [ %51, %48 ], [ %56, %54 ]
  %63 = phi i64 [ %50, %48 ], [ %57, %54 ]
  %64 = phi i1 [ false, %48 ], [ %59, %54 ]
  %65 = icmp sle i64 %61, %63
  %66 = select i1 %65, i1 true, i1 %64
  br i1 %66, label %71, label %67

67:                                               ; preds = %60
  %68 = getelementptr inbounds i8, ptr %3, i64 %31
  %69 = load i8, ptr %68, align 1
  %70 = icmp ne i8 %69, 0
  br label %71

71:                                               ; preds = %67, %60
  %72 = phi i1 [ false, %60 ], [ %70, %67 ]
  %73 = sext i1 %72 to i64
  %74 = load i64, ptr %11, align 8
  %75 = icmp sgt i64 %74, 0
  br i1 %75, label %78, label %76

76:                                               ; preds = %71
  tail call fastcc void @sort(ptr noundef %23, i64 noundef %74) #3
  br label %109

77:                                               ; preds = %83
  tail call fastcc void @sort(ptr noundef nonnull %23, i64 noundef %74) #3
  br label %93

78:                                               ; preds = %71, %83
  %79 = phi i64 [ %91, %83 ], [ 0, %71 ]
  br i1 %27, label %83, label %80

80:                                               ; preds = %78
  %81 = getelementptr inbounds i64, ptr %10, i64 %79
  %82 = load i64, ptr %81, align 8
  br label %83

83:                                               ; preds = %78, %80
  %84 = phi i64 [ %82, %80 ], [ %79, %78 ]
  %85 = getelementptr inbounds i64, ptr %1, i64 %84
  %86 = load i64, ptr %85, align 8
  %87 = shl i64 %86, 32
  %88 = sub i64 9223372032559808512, %87
  %89 = or i64 %88, %79
  %90 = getelementptr inbounds i64, ptr %23, i64 %79
  store i64 %89, ptr %90, align 8
  %91 = add nuw nsw i64 %79, 1
  %92 = icmp eq i64 %91, %74
  br i1 %92, label %77, label %78, !llvm.loop !1

93:                                               ; preds = %101, %77
  %94 = phi i64 [ 0, %77 ], [ %106, %101 ]
  %95 = getelementptr inbounds i64, ptr %23, i64 %94
  %96 = load i64, ptr %95, align 8
  %97 = and i64 %96, 4294967295
  br i1 %27, label %101, label %98

98:                                               ; preds = %93
  %99 = getelementptr inbounds i64, ptr %10, i64 %97
  %100 = load i64, ptr %99, align 8
  br label %101

101:                                              ; preds = %93, %98
  %102 = phi i64 [ %100, %98 ], [ %97, %93 ]
  %103 = getelementptr inbounds i64, ptr %12, i64 %94
  store i64 %102, ptr %103, align 8
  %104 = getelementptr inbounds i64, ptr %1, i64 %102
  %105 = load i64, ptr %104, align 8
  %106 = add nuw nsw i64 %94, 1
  %107 = getelementptr inbounds i64, ptr %19, i64 %94
  store i64 %105, ptr %107, align 8
  %108 = icmp eq i64 %106, %74
  br i1 %108, label %109, label %93, !llvm.loop !4

109:                                              ; preds = %101, %76
  %110 = phi i64 [ 0, %76 ], [ %74, %101 ]
  %111 = sub i64 %61, %63
  %112 = add i64 %111, %73
  %113 = icmp sgt i64 %112, 0
  br i1 %113, label %116, label %114

114:                                              ; preds = %109
  tail call fastcc void @sort(ptr noundef %23, i64 noundef %112) #3
  br label %141

115:                                              ; preds = %116
  tail call fastcc void @sort(ptr noundef nonnull %23, i64 noundef %112) #3
  br label %127

116:                                              ; preds = %109, %116
  %117 = phi i64 [ %125, %116 ], [ 0, %109 ]
  %118 = add nsw i64 %117, %63
  %119 = getelementptr inbounds i64, ptr %1, i64 %118
  %120 = load i64, ptr %119, align 8
  %121 = shl i64 %120, 32
  %122 = sub i64 9223372032559808512, %121
  %123 = or i64 %122, %117
  %124 = getelementptr inbounds i64, ptr %23, i64 %117
  store i64 %123, ptr %124, align 8
  %125 = add nuw nsw i64 %117, 1
  %126 = icmp eq i64 %125, %112
  br i1 %126, label %115, label %116, !llvm.loop !1

127:                                              ; preds = %127, %115
  %128 = phi i64 [ %110, %115 ], [ %137, %127 ]
  %129 = phi i64 [ 0, %115 ], [ %139, %127 ]
  %130 = getelementptr inbounds i64, ptr %23, i64 %129
  %131 = load i64, ptr %130, align 8
  %132 = and i64 %131, 4294967295
  %133 = add nsw i64 %132, %63
  %134 = getelementptr inbounds i64, ptr %12, i64 %128
  store i64 %133, ptr %134, align 8
  %135 = getelementptr inbounds i64, ptr %1, i64 %133
  %136 = load i64, ptr %135, align 8
  %137 = add nuw nsw i64 %128, 1
  %138 = getelementptr inbounds i64, ptr %19, i64 %128
  store i64 %136, ptr %138, align 8
  %139 = add nuw nsw i64 %129, 1
  %140 = icmp eq i64 %139, %112
  br i1 %140, label %141, label %127, !llvm.loop !4

141:                                              ; preds = %127, %114
  %142 = phi i64 [ %110, %114 ], [ %137, %127 ]
  %143 = icmp sgt i64 %142, 0
  br i1 %143, label %147, label %144

144:                                              ; preds = %147, %141
  %145 = phi i64 [ 0, %141 ], [ %152, %147 ]
  %146 = icmp eq i64 %142, 0
  br i1 %146, label %400, label %155

147:                                              ; preds = %141, %147
  %148 = phi i64 [ %153, %147 ], [ 0, %141 ]
  %149 = phi i64 [ %152, %147 ], [ 0, %141 ]
  %150 = getelementptr inbounds i64, ptr %19, i64 %148
  %151 = load i64, ptr %150, align 8
  %152 = add nsw i64 %151, %149
  %153 = add nuw nsw i64 %148, 1
  %154 = icmp eq i64 %153, %142
  br i1 %154, label %144, label %147, !llvm.loop !5

155:                                              ; preds = %144, %391
  %156 = phi ptr [ %394, %391 ], [ %33, %144 ]
  %157 = phi i64 [ %396, %391 ], [ %145, %144 ]
  %158 = phi i64 [ %392, %391 ], [ %32, %144 ]
  %159 = phi i64 [ %352, %391 ], [ %74, %144 ]
  %160 = phi i64 [ %388, %391 ], [ %142, %144 ]
  %161 = icmp ne i64 %159, 0
  %162 = select i1 %64, i1 true, i1 %161
  %163 = icmp sge i64 %157, %4
  %164 = select i1 %162, i1 true, i1 %163
  br i1 %164, label %165, label %398

165:                                              ; preds = %155
  %166 = load i64, ptr %19, align 8
  %167 = sub nsw i64 %4, %166
  store i64 0, ptr %21, align 8
  %168 = icmp sgt i64 %159, 1
  br i1 %168, label %173, label %169

169:                                              ; preds = %186, %165
  %170 = phi i64 [ 1, %165 ], [ %188, %186 ]
  %171 = phi i64 [ %167, %165 ], [ %189, %186 ]
  %172 = icmp slt i64 %171, 1
  br i1 %172, label %343, label %192

173:                                              ; preds = %165, %186
  %174 = phi i64 [ %187, %186 ], [ %159, %165 ]
  %175 = phi i64 [ %189, %186 ], [ %167, %165 ]
  %176 = phi i64 [ %190, %186 ], [ 1, %165 ]
  %177 = phi i64 [ %188, %186 ], [ 1, %165 ]
  %178 = getelementptr inbounds i64, ptr %19, i64 %176
  %179 = load i64, ptr %178, align 8
  %180 = icmp sgt i64 %179, %175
  br i1 %180, label %186, label %181

181:                                              ; preds = %173
  %182 = add nsw i64 %177, 1
  %183 = getelementptr inbounds i64, ptr %21, i64 %177
  store i64 %176, ptr %183, align 8
  %184 = load i64, ptr %178, align 8
  %185 = sub nsw i64 %175, %184
  br label %186

186:                                              ; preds = %181, %173
  %187 = phi i64 [ %159, %181 ], [ %174, %173 ]
  %188 = phi i64 [ %182, %181 ], [ %177, %173 ]
  %189 = phi i64 [ %185, %181 ], [ %175, %173 ]
  %190 = add nuw nsw i64 %176, 1
  %191 = icmp slt i64 %190, %187
  br i1 %191, label %173, label %169, !llvm.loop !6

192:                                              ; preds = %169
  %193 = tail call i64 @llvm.smax.i64(i64 %159, i64 1)
  %194 = lshr i64 %171, 6
  %195 = add nuw nsw i64 %194, 1
  %196 = add nsw i64 %193, %6
  %197 = tail call i64 @llvm.smin.i64(i64 %160, i64 %196)
  %198 = icmp slt i64 %193, %197
  br i1 %198, label %199, label %207

199:                                              ; preds = %192, %204
  %200 = phi i64 [ %205, %204 ], [ %193, %192 ]
  %201 = getelementptr inbounds i64, ptr %19, i64 %200
  %202 = load i64, ptr %201, align 8
  %203 = icmp sgt i64 %202, %171
  br i1 %203, label %204, label %207

204:                                              ; preds = %199
  %205 = add nuw i64 %200, 1
  %206 = icmp eq i64 %205, %197
  br i1 %206, label %207, label %199, !llvm.loop !7

207:                                              ; preds = %204, %199, %192
  %208 = phi i64 [ %193, %192 ], [ %200, %199 ], [ %197, %204 ]
  %209 = add nuw nsw i64 %194, 17
  br label %217

210:                                              ; preds = %217
  %211 = and i64 %171, 63
  %212 = shl nuw i64 1, %211
  %213 = getelementptr inbounds i64, ptr %14, i64 %194
  store i64 %212, ptr %213, align 8
  %214 = icmp sgt i64 %197, %208
  br i1 %214, label %215, label %278

215:                                              ; preds = %210
  %216 = sub i64 %197, %208
  br label %222

217:                                              ; preds = %217, %207
  %218 = phi i64 [ 0, %207 ], [ %220, %217 ]
  %219 = getelementptr inbounds i64, ptr %14, i64 %218
  store i64 0, ptr %219, align 8
  %220 = add nuw nsw i64 %218, 1
  %221 = icmp eq i64 %220, %209
  br i1 %221, label %210, label %217, !llvm.loop !8

222:                                              ; preds = %274, %215
  %223 = phi i64 [ %208, %215 ], [ %276, %274 ]
  %224 = phi ptr [ %14, %215 ], [ %230, %274 ]
  %225 = phi i64 [ 0, %215 ], [ %275, %274 ]
  %226 = load i64, ptr %224, align 8
  %227 = and i64 %226, 1
  %228 = icmp eq i64 %227, 0
  br i1 %228, label %229, label %278

229:                                              ; preds = %222
  %230 = getelementptr inbounds i64, ptr %224, i64 %18
  %231 = getelementptr inbounds i64, ptr %19, i64 %223
  %232 = load i64, ptr %231, align 8
  %233 = sdiv i64 %232, 64
  %234 = icmp sge i64 %194, %233
  %235 = sub nsw i64 %195, %233
  %236 = icmp sgt i64 %235, 0
  %237 = select i1 %234, i1 %236, i1 false
  br i1 %237, label %240, label %238

238:                                              ; preds = %247, %229
  %239 = phi i64 [ 0, %229 ], [ %265, %247 ]
  br label %267

240:                                              ; preds = %229
  %241 = and i64 %232, 63
  %242 = insertelement <8 x i64> poison, i64 %241, i64 0
  %243 = shufflevector <8 x i64> %242, <8 x i64> poison, <8 x i32> zeroinitializer
  %244 = xor i64 %241, 63
  %245 = insertelement <8 x i64> poison, i64 %244, i64 0
  %246 = shufflevector <8 x i64> %245, <8 x i64> poison, <8 x i32> zeroinitializer
  br label %249

247:                                              ; preds = %249
  %248 = icmp ult i64 %265, %209
  br i1 %248, label %238, label %274

249:                                              ; preds = %249, %240
  %250 = phi i64 [ 0, %240 ], [ %265, %249 ]
  %251 = add nsw i64 %250, %233
  %252 = getelementptr inbounds i64, ptr %224, i64 %251
  %253 = load <8 x i64>, ptr %252, align 8
  %254 = add nsw i64 %251, 1
  %255 = getelementptr inbounds i64, ptr %224, i64 %254
  %256 = load <8 x i64>, ptr %255, align 8
  %257 = getelementptr inbounds i64, ptr %224, i64 %250
  %258 = load <8 x i64>, ptr %257, align 8
  %259 = lshr <8 x i64> %253, %243
  %260 = or <8 x i64> %258, %259
  %261 = shl <8 x i64> %256, <i64 1, i64 1, i64 1, i64 1, i64 1, i64 1, i64 1, i64 1>
  %262 = shl <8 x i64> %261, %246
  %263 = or <8 x i64> %260, %262
  %264 = getelementptr inbounds i64, ptr %230, i64 %250
  store <8 x i64> %263, ptr %264, align 8
  %265 = add nuw nsw i64 %250, 8
  %266 = icmp sgt i64 %235, %265
  br i1 %266, label %249, label %247, !llvm.loop !9

267:                                              ; preds = %238, %267
  %268 = phi i64 [ %272, %267 ], [ %239, %238 ]
  %269 = getelementptr inbounds i64, ptr %224, i64 %268
  %270 = load i64, ptr %269, align 8
  %271 = getelementptr inbounds i64, ptr %230, i64 %268
  store i64 %270, ptr %271, align 8
  %272 = add nuw nsw i64 %268, 1
  %273 = icmp eq i64 %272, %209
  br i1 %273, label %274, label %267, !llvm.loop !10

274:                                              ; preds = %267, %247
  %275 = add nuw i64 %225, 1
  %276 = add nuw nsw i64 %275, %208
  %277 = icmp eq i64 %275, %216
  br i1 %277, label %278, label %222, !llvm.loop !11

278:                                              ; preds = %274, %222, %210
  %279 = phi i64 [ 0, %210 ], [ %225, %222 ], [ %216, %274 ]
  %280 = phi ptr [ %14, %210 ], [ %224, %222 ], [ %230, %274 ]
  %281 = phi i64 [ %208, %210 ], [ %223, %222 ], [ %276, %274 ]
  br label %282

282:                                              ; preds = %282, %278
  %283 = phi i64 [ 0, %278 ], [ %291, %282 ]
  %284 = lshr i64 %283, 6
  %285 = getelementptr inbounds i64, ptr %280, i64 %284
  %286 = load i64, ptr %285, align 8
  %287 = and i64 %283, 63
  %288 = shl nuw i64 1, %287
  %289 = and i64 %288, %286
  %290 = icmp eq i64 %289, 0
  %291 = add nuw nsw i64 %283, 1
  br i1 %290, label %282, label %292, !llvm.loop !12

292:                                              ; preds = %282
  %293 = icmp slt i64 %283, %171
  br i1 %293, label %297, label %294

294:                                              ; preds = %318, %292
  %295 = phi i64 [ %170, %292 ], [ %319, %318 ]
  %296 = icmp eq i64 %283, 0
  br i1 %296, label %343, label %322

297:                                              ; preds = %292, %318
  %298 = phi i64 [ %320, %318 ], [ %283, %292 ]
  %299 = phi i64 [ %303, %318 ], [ %279, %292 ]
  %300 = phi ptr [ %302, %318 ], [ %280, %292 ]
  %301 = phi i64 [ %319, %318 ], [ %170, %292 ]
  %302 = getelementptr inbounds i64, ptr %300, i64 %28
  %303 = add nsw i64 %299, -1
  %304 = sdiv i64 %298, 64
  %305 = getelementptr inbounds i64, ptr %302, i64 %304
  %306 = load i64, ptr %305, align 8
  %307 = and i64 %298, 63
  %308 = shl nuw i64 1, %307
  %309 = and i64 %306, %308
  %310 = icmp eq i64 %309, 0
  br i1 %310, label %311, label %318

311:                                              ; preds = %297
  %312 = add nsw i64 %303, %208
  %313 = add nsw i64 %301, 1
  %314 = getelementptr inbounds i64, ptr %21, i64 %301
  store i64 %312, ptr %314, align 8
  %315 = getelementptr inbounds i64, ptr %19, i64 %312
  %316 = load i64, ptr %315, align 8
  %317 = add nsw i64 %316, %298
  br label %318

318:                                              ; preds = %311, %297
  %319 = phi i64 [ %301, %297 ], [ %313, %311 ]
  %320 = phi i64 [ %298, %297 ], [ %317, %311 ]
  %321 = icmp slt i64 %320, %171
  br i1 %321, label %297, label %294, !llvm.loop !13

322:                                              ; preds = %294, %337
  %323 = phi i64 [ %338, %337 ], [ %283, %294 ]
  %324 = phi i64 [ %339, %337 ], [ %283, %294 ]
  %325 = phi i64 [ %341, %337 ], [ %281, %294 ]
  %326 = phi i64 [ %340, %337 ], [ %295, %294 ]
  %327 = icmp slt i64 %325, %160
  br i1 %327, label %328, label %343

328:                                              ; preds = %322
  %329 = getelementptr inbounds i64, ptr %19, i64 %325
  %330 = load i64, ptr %329, align 8
  %331 = icmp sgt i64 %330, %324
  br i1 %331, label %337, label %332

332:                                              ; preds = %328
  %333 = add nsw i64 %326, 1
  %334 = getelementptr inbounds i64, ptr %21, i64 %326
  store i64 %325, ptr %334, align 8
  %335 = load i64, ptr %329, align 8
  %336 = sub nsw i64 %323, %335
  br label %337

337:                                              ; preds = %332, %328
  %338 = phi i64 [ %323, %328 ], [ %336, %332 ]
  %339 = phi i64 [ %324, %328 ], [ %336, %332 ]
  %340 = phi i64 [ %326, %328 ], [ %333, %332 ]
  %341 = add nuw nsw i64 %325, 1
  %342 = icmp eq i64 %339, 0
  br i1 %342, label %343, label %322, !llvm.loop !14

343:                                              ; preds = %322, %337, %169, %294
  %344 = phi i64 [ %171, %169 ], [ 0, %294 ], [ %323, %322 ], [ %338, %337 ]
  %345 = phi i64 [ %170, %169 ], [ %295, %294 ], [ %326, %322 ], [ %340, %337 ]
  %346 = mul nsw i64 %344, %5
  %347 = icmp sle i64 %346, %4
  %348 = select i1 %162, i1 true, i1 %347
  br i1 %348, label %349, label %398

349:                                              ; preds = %343
  %350 = icmp sgt i64 %345, 0
  br i1 %350, label %358, label %351

351:                                              ; preds = %358, %349
  %352 = phi i64 [ %159, %349 ], [ %366, %358 ]
  tail call fastcc void @sort(ptr noundef %156, i64 noundef %345) #3
  %353 = icmp sgt i64 %160, 0
  br i1 %353, label %372, label %354

354:                                              ; preds = %351
  %355 = add nsw i64 %158, 1
  %356 = getelementptr inbounds i64, ptr %9, i64 %158
  store i64 %345, ptr %356, align 8
  %357 = getelementptr inbounds i64, ptr %156, i64 %345
  br label %400

358:                                              ; preds = %349, %358
  %359 = phi i64 [ %366, %358 ], [ %159, %349 ]
  %360 = phi i64 [ %370, %358 ], [ 0, %349 ]
  %361 = getelementptr inbounds i64, ptr %21, i64 %360
  %362 = load i64, ptr %361, align 8
  %363 = getelementptr inbounds i8, ptr %13, i64 %362
  store i8 1, ptr %363, align 1
  %364 = icmp slt i64 %362, %159
  %365 = sext i1 %364 to i64
  %366 = add i64 %359, %365
  %367 = getelementptr inbounds i64, ptr %12, i64 %362
  %368 = load i64, ptr %367, align 8
  %369 = getelementptr inbounds i64, ptr %156, i64 %360
  store i64 %368, ptr %369, align 8
  %370 = add nuw nsw i64 %360, 1
  %371 = icmp eq i64 %370, %345
  br i1 %371, label %351, label %358, !llvm.loop !15

372:                                              ; preds = %351, %387
  %373 = phi i64 [ %389, %387 ], [ 0, %351 ]
  %374 = phi i64 [ %388, %387 ], [ 0, %351 ]
  %375 = getelementptr inbounds i8, ptr %13, i64 %373
  %376 = load i8, ptr %375, align 1
  %377 = icmp eq i8 %376, 0
  br i1 %377, label %379, label %378

378:                                              ; preds = %372
  store i8 0, ptr %375, align 1
  br label %387

379:                                              ; preds = %372
  %380 = getelementptr inbounds i64, ptr %12, i64 %373
  %381 = load i64, ptr %380, align 8
  %382 = getelementptr inbounds i64, ptr %12, i64 %374
  store i64 %381, ptr %382, align 8
  %383 = getelementptr inbounds i64, ptr %19, i64 %373
  %384 = load i64, ptr %383, align 8
  %385 = add nsw i64 %374, 1
  %386 = getelementptr inbounds i64, ptr %19, i64 %374
  store i64 %384, ptr %386, align 8
  br label %387

387:                                              ; preds = %379, %378
  %388 = phi i64 [ %374, %378 ], [ %385, %379 ]
  %389 = add nuw nsw i64 %373, 1
  %390 = icmp eq i64 %389, %160
  br i1 %390, label %391, label %372, !llvm.loop !16

391:                                              ; preds = %387
  %392 = add nsw i64 %158, 1
  %393 = getelementptr inbounds i64, ptr %9, i64 %158
  store i64 %345, ptr %393, align 8
  %394 = getelementptr inbounds i64, ptr %156, i64 %345
  %395 = sub i64 %157, %4
  %396 = add i64 %395, %344
  %397 = icmp eq i64 %388, 0
  br i1 %397, label %400, label %155

398:                                              ; preds = %155, %343
  %399 = icmp sgt i64 %160, 0
  br i1 %399, label %405, label %400

400:                                              ; preds = %391, %398, %144, %354
  %401 = phi ptr [ %156, %398 ], [ %357, %354 ], [ %33, %144 ], [ %394, %391 ]
  %402 = phi i64 [ %158, %398 ], [ %355, %354 ], [ %32, %144 ], [ %392, %391 ]
  %403 = phi i64 [ %160, %398 ], [ 0, %354 ], [ 0, %144 ], [ 0, %391 ]
  tail call fastcc void @sort(ptr noundef %23, i64 noundef %403) #3
  br label %412

404:                                              ; preds = %405
  tail call fastcc void @sort(ptr noundef nonnull %23, i64 noundef %160) #3
  br i1 %399, label %416, label %412

405:                                              ; preds = %398, %405
  %406 = phi i64 [ %410, %405 ], [ 0, %398 ]
  %407 = getelementptr inbounds i64, ptr %12, i64 %406
  %408 = load i64, ptr %407, align 8
  %409 = getelementptr inbounds i64, ptr %23, i64 %406
  store i64 %408, ptr %409, align 8
  %410 = add nuw nsw i64 %406, 1
  %411 = icmp eq i64 %410, %160
  br i1 %411, label %404, label %405, !llvm.loop !17

412:                                              ; preds = %416, %400, %404
  %413 = phi i64 [ %403, %400 ], [ %160, %404 ], [ %160, %416 ]
  %414 = phi i64 [ %402, %400 ], [ %158, %404 ], [ %158, %416 ]
  %415 = phi ptr [ %401, %400 ], [ %156, %404 ], [ %156, %416 ]
  store i64 %413, ptr %11, align 8
  br i1 %72, label %423, label %427

416:                                              ; preds = %404, %416
  %417 = phi i64 [ %421, %416 ], [ 0, %404 ]
  %418 = getelementptr inbounds i64, ptr %23, i64 %417
  %419 = load i64, ptr %418, align 8
  %420 = getelementptr inbounds i64, ptr %10, i64 %417
  store i64 %419, ptr %420, align 8
  %421 = add nuw nsw i64 %417, 1
  %422 = icmp eq i64 %421, %160
  br i1 %422, label %412, label %416, !llvm.loop !18

423:                                              ; preds = %412
  %424 = add nsw i64 %61, -1
  %425 = add nsw i64 %413, 1
  store i64 %425, ptr %11, align 8
  %426 = getelementptr inbounds i64, ptr %10, i64 %413
  store i64 %424, ptr %426, align 8
  br label %427

427:                                              ; preds = %423, %412
  br label %30, !llvm.loop !19
}

; Function Attrs: nofree norecurse nosync nounwind memory(argmem: readwrite)
define internal fastcc void @sort(ptr nocapture noundef %0, i64 noundef %1) unnamed_addr #1 {
  %3 = icmp slt i64 %1, 17
  br i1 %3, label %4, label %24

4:                                                ; preds = %2
  %5 = icmp sgt i64 %1, 1
  br i1 %5, label %6, label %93

6:                                                ; preds = %4, %19
  %7 = phi i64 [ %22, %19 ], [ 1, %4 ]
  %8 = getelementptr inbounds i64, ptr %0, i64 %7
  %9 = load i64, ptr %8, align 8
  br label %10

10:                                               ; preds = %6, %16
  %11 = phi i64 [ %7, %6 ], [ %12, %16 ]
  %12 = add nsw i64 %11, -1
  %13 = getelementptr inbounds i64, ptr %0, i64 %12
  %14 = load i64, ptr %13, align 8
  %15 = icmp ugt i64 %14, %9
  br i1 %15, label %16, label %19

16:                                               ; preds = %10
  %17 = getelementptr inbounds i64, ptr %0, i64 %11
  store i64 %14, ptr %17, align 8
  %18 = icmp eq i64 %12, 0
  br i1 %18, label %19, label %10, !llvm.loop !20

19:                                               ; preds = %16, %10
  %20 = phi i64 [ 0, %16 ], [ %11, %10 ]
  %21 = getelementptr inbounds i64, ptr %0, i64 %20
  store i64 %9, ptr %21, align 8
  %22 = add nuw nsw i64 %7, 1
  %23 = icmp eq i64 %22, %1
  br i1 %23, label %93, label %6, !llvm.loop !21

24:                                               ; preds = %2
  %25 = lshr i64 %1, 1
  br label %28

26:                                               ; preds = %58
  %27 = icmp sgt i64 %1, 1
  br i1 %27, label %60, label %93

28:                                               ; preds = %24, %58
  %29 = phi i64 [ %30, %58 ], [ %25, %24 ]
  %30 = add nsw i64 %29, -1
  %31 = shl nsw i64 %30, 1
  %32 = or i64 %31, 1
  %33 = icmp slt i64 %32, %1
  br i1 %33, label %34, label %58

34:                                               ; preds = %28, %54
  %35 = phi i64 [ %56, %54 ], [ %32, %28 ]
  %36 = phi i64 [ %55, %54 ], [ %31, %28 ]
  %37 = phi i64 [ %48, %54 ], [ %30, %28 ]
  %38 = add i64 %36, 2
  %39 = icmp slt i64 %38, %1
  br i1 %39, label %40, label %47

40:                                               ; preds = %34
  %41 = getelementptr inbounds i64, ptr %0, i64 %35
  %42 = load i64, ptr %41, align 8
  %43 = getelementptr inbounds i64, ptr %0, i64 %38
  %44 = load i64, ptr %43, align 8
  %45 = icmp ult i64 %42, %44
  %46 = select i1 %45, i64 %38, i64 %35
  br label %47

47:                                               ; preds = %40, %34
  %48 = phi i64 [ %35, %34 ], [ %46, %40 ]
  %49 = getelementptr inbounds i64, ptr %0, i64 %37
  %50 = load i64, ptr %49, align 8
  %51 = getelementptr inbounds i64, ptr %0, i64 %48
  %52 = load i64, ptr %51, align 8
  %53 = icmp ult i64 %50, %52
  br i1 %53, label %54, label %58

54:                                               ; preds = %47
  store i64 %52, ptr %49, align 8
  store i64 %50, ptr %51, align 8
  %55 = shl nsw i64 %48, 1
  %56 = or i64 %55, 1
  %57 = icmp slt i64 %56, %1
  br i1 %57, label %34, label %58, !llvm.loop !22

58:                                               ; preds = %47, %54, %28
  %59 = icmp eq i64 %30, 0
  br i1 %59, label %26, label %28, !llvm.loop !23

60:                                               ; preds = %26, %91
  %61 = phi i64 [ %62, %91 ], [ %1, %26 ]
  %62 = add nsw i64 %61, -1
  %63 = load i64, ptr %0, align 8
  %64 = getelementptr inbounds i64, ptr %0, i64 %62
  %65 = load i64, ptr %64, align 8
  store i64 %65, ptr %0, align 8
  store i64 %63, ptr %64, align 8
  %66 = icmp ugt i64 %62, 1
  br i1 %66, label %67, label %93

67:                                               ; preds = %60, %87
  %68 = phi i64 [ %89, %87 ], [ 1, %60 ]
  %69 = phi i64 [ %88, %87 ], [ 0, %60 ]
  %70 = phi i64 [ %81, %87 ], [ 0, %60 ]
  %71 = add i64 %69, 2
  %72 = icmp slt i64 %71, %62
  br i1 %72, label %73, label %80

73:                                               ; preds = %67
  %74 = getelementptr inbounds i64, ptr %0, i64 %68
  %75 = load i64, ptr %74, align 8
  %76 = getelementptr inbounds i64, ptr %0, i64 %71
  %77 = load i64, ptr %76, align 8
  %78 = icmp ult i64 %75, %77
  %79 = select i1 %78, i64 %71, i64 %68
  br label %80

80:                                               ; preds = %73, %67
  %81 = phi i64 [ %68, %67 ], [ %79, %73 ]
  %82 = getelementptr inbounds i64, ptr %0, i64 %70
  %83 = load i64, ptr %82, align 8
  %84 = getelementptr inbounds i64, ptr %0, i64 %81
  %85 = load i64, ptr %84, align 8
  %86 = icmp ult i64 %83, %85
  br i1 %86, label %87, label %91

87:                                               ; preds = %80
  store i64 %85, ptr %82, align 8
  store i64 %83, ptr %84, align 8
  %88 = shl nsw i64 %81, 1
  %89 = or i64 %88, 1
  %90 = icmp slt i64 %89, %62
  br i1 %90, label %67, label %91, !llvm.loop !22

91:                                               ; preds = %80, %87
  %92 = icmp sgt i64 %61, 2
  br i1 %92, label %60, label %93, !llvm.loop !24

93:                                               ; preds = %60, %91, %19, %26, %4
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smin.i64(i64, i64) #2

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #2

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
!7 = distinct !{!7, !2, !3}
!8 = distinct !{!8, !2, !3}
!9 = distinct !{!9, !2, !3}
!10 = distinct !{!10, !2, !3}
!11 = distinct !{!11, !2, !3}
!12 = distinct !{!12, !2, !3}
!13 = distinct !{!13, !2, !3}
!14 = distinct !{!14, !2, !3}
!15 = distinct !{!15, !2, !3}
!16 = distinct !{!16, !2, !3}
!17 = distinct !{!17, !2, !3}
!18 = distinct !{!18, !2, !3}
!19 = distinct !{!19, !2, !3}
!20 = distinct !{!20, !2, !3}
!21 = distinct !{!21, !2, !3}
!22 = distinct !{!22, !2, !3}
!23 = distinct !{!23, !2, !3}
!24 = distinct !{!24, !2, !3}

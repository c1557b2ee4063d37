; Compiled from crc32c.c by scripts/compile_kernels.py: 5637194957615298d7d130786293cd2900280ba3a4ceadd00e79bd32c3d772da 459578083b723dcdf5a424a22a04613a02b0aba8007f4b238c079a02e9f16f75
%struct.Stream = type { i64, i64, i64 }

@STREAMS = internal constant [2 x %struct.Stream] [%struct.Stream { i64 21824, i64 1086993895, i64 791548128 }, %struct.Stream { i64 1024, i64 385906426, i64 2770034997 }], align 16

; Function Attrs: nofree nosync nounwind
define dso_local i32 @crc32c(i32 noundef %0, ptr nocapture noundef readonly %1, i64 noundef %2) local_unnamed_addr #0 {
  %4 = xor i32 %0, -1
  %5 = zext i32 %4 to i64
  br label %6

6:                                                ; preds = %3, %129
  %7 = phi ptr [ %1, %3 ], [ %132, %129 ]
  %8 = phi i64 [ %2, %3 ], [ %131, %129 ]
  %9 = phi ptr [ @STREAMS, %3 ], [ %133, %129 ]
  %10 = phi i64 [ %5, %3 ], [ %130, %129 ]
  %11 = load i64, ptr %9, align 8
  %12 = mul i64 %11, 3
  %13 = icmp ult i64 %8, %12
  br i1 %13, label %129, label %14

14:                                               ; preds = %6
  %15 = icmp eq i64 %11, 0
  %16 = getelementptr inbounds %struct.Stream, ptr %9, i64 0, i32 2
  %17 = load i64, ptr %16, align 8
  %18 = insertelement <2 x i64> poison, i64 %17, i64 0
  %19 = getelementptr inbounds %struct.Stream, ptr %9, i64 0, i32 1
  %20 = load i64, ptr %19, align 8
  %21 = insertelement <2 x i64> poison, i64 %20, i64 0
  br label %24

22:                                               ; preds = %129
  %23 = icmp ugt i64 %131, 7
  br i1 %23, label %140, label %135

24:                                               ; preds = %14, %30
  %25 = phi ptr [ %7, %14 ], [ %44, %30 ]
  %26 = phi i64 [ %8, %14 ], [ %45, %30 ]
  %27 = phi i64 [ %10, %14 ], [ %43, %30 ]
  %28 = getelementptr inbounds i8, ptr %25, i64 %11
  %29 = getelementptr inbounds i8, ptr %28, i64 %11
  br i1 %15, label %30, label %47

30:                                               ; preds = %47, %24
  %31 = phi i64 [ %27, %24 ], [ %120, %47 ]
  %32 = phi i64 [ 0, %24 ], [ %123, %47 ]
  %33 = phi i64 [ 0, %24 ], [ %126, %47 ]
  %34 = insertelement <2 x i64> poison, i64 %31, i64 0
  %35 = tail call <2 x i64> @llvm.x86.pclmulqdq(<2 x i64> %34, <2 x i64> %18, i8 0)
  %36 = extractelement <2 x i64> %35, i64 0
  %37 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 0, i64 %36)
  %38 = insertelement <2 x i64> poison, i64 %32, i64 0
  %39 = tail call <2 x i64> @llvm.x86.pclmulqdq(<2 x i64> %38, <2 x i64> %21, i8 0)
  %40 = extractelement <2 x i64> %39, i64 0
  %41 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 0, i64 %40)
  %42 = xor i64 %37, %33
  %43 = xor i64 %42, %41
  %44 = getelementptr inbounds i8, ptr %25, i64 %12
  %45 = sub i64 %26, %12
  %46 = icmp ult i64 %45, %12
  br i1 %46, label %129, label %24, !llvm.loop !1

47:                                               ; preds = %24, %47
  %48 = phi i64 [ %127, %47 ], [ 0, %24 ]
  %49 = phi i64 [ %126, %47 ], [ 0, %24 ]
  %50 = phi i64 [ %123, %47 ], [ 0, %24 ]
  %51 = phi i64 [ %120, %47 ], [ %27, %24 ]
  %52 = getelementptr inbounds i8, ptr %25, i64 %48
  %53 = getelementptr inbounds i8, ptr %52, i64 1024
  tail call void @llvm.prefetch.p0(ptr nonnull %53, i32 0, i32 3, i32 1)
  %54 = getelementptr inbounds i8, ptr %28, i64 %48
  %55 = getelementptr inbounds i8, ptr %54, i64 1024
  tail call void @llvm.prefetch.p0(ptr nonnull %55, i32 0, i32 3, i32 1)
  %56 = getelementptr inbounds i8, ptr %29, i64 %48
  %57 = getelementptr inbounds i8, ptr %56, i64 1024
  tail call void @llvm.prefetch.p0(ptr nonnull %57, i32 0, i32 3, i32 1)
  %58 = load i64, ptr %52, align 1
  %59 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %51, i64 %58)
  %60 = load i64, ptr %54, align 1
  %61 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %50, i64 %60)
  %62 = load i64, ptr %56, align 1
  %63 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %49, i64 %62)
  %64 = getelementptr inbounds i8, ptr %52, i64 8
  %65 = load i64, ptr %64, align 1
  %66 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %59, i64 %65)
  %67 = getelementptr inbounds i8, ptr %54, i64 8
  %68 = load i64, ptr %67, align 1
  %69 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %61, i64 %68)
  %70 = getelementptr inbounds i8, ptr %56, i64 8
  %71 = load i64, ptr %70, align 1
  %72 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %63, i64 %71)
  %73 = getelementptr inbounds i8, ptr %52, i64 16
  %74 = load i64, ptr %73, align 1
  %75 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %66, i64 %74)
  %76 = getelementptr inbounds i8, ptr %54, i64 16
  %77 = load i64, ptr %76, align 1
  %78 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %69, i64 %77)
  %79 = getelementptr inbounds i8, ptr %56, i64 16
  %80 = load i64, ptr %79, align 1
  %81 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %72, i64 %80)
  %82 = getelementptr inbounds i8, ptr %52, i64 24
  %83 = load i64, ptr %82, align 1
  %84 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %75, i64 %83)
  %85 = getelementptr inbounds i8, ptr %54, i64 24
  %86 = load i64, ptr %85, align 1
  %87 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %78, i64 %86)
  %88 = getelementptr inbounds i8, ptr %56, i64 24
  %89 = load i64, ptr %88, align 1
  %90 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %81, i64 %89)
  %91 = getelementptr inbounds i8, ptr %52, i64 32
  %92 = load i64, ptr %91, align 1
  %93 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %84, i64 %92)
  %94 = getelementptr inbounds i8, ptr %54, i64 32
  %95 = load i64, ptr %94, align 1
  %96 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %87, i64 %95)
  %97 = getelementptr inbounds i8, ptr %56, i64 32
  %98 = load i64, ptr %97, align 1
  %99 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %90, i64 %98)
  %100 = getelementptr inbounds i8, ptr %52, i64 40
  %101 = load i64, ptr %100, align 1
  %102 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %93, i64 %101)
  %103 = getelementptr inbounds i8, ptr %54, i64 40
  %104 = load i64, ptr %103, align 1
  %105 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %96, i64 %104)
  %106 = getelementptr inbounds i8, ptr %56, i64 40
  %107 = load i64, ptr %106, align 1
  %108 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %99, i64 %107)
  %109 = getelementptr inbounds i8, ptr %52, i64 48
  %110 = load i64, ptr %109, align 1
  %111 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %102, i64 %110)
  %112 = getelementptr inbounds i8, ptr %54, i64 48
  %113 = load i64, ptr %112, align 1
  %114 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %105, i64 %113)
  %115 = getelementptr inbounds i8, ptr %56, i64 48
  %116 = load i64, ptr %115, align 1
  %117 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %108, i64 %116)
  %118 = getelementptr inbounds i8, ptr %52, i64 56
  %119 = load i64, ptr %118, align 1
  %120 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %111, i64 %119)
  %121 = getelementptr inbounds i8, ptr %54, i64 56
  %122 = load i64, ptr %121, align 1
  %123 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %114, i64 %122)
  %124 = getelementptr inbounds i8, ptr %56, i64 56
  %125 = load i64, ptr %124, align 1
  %126 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %117, i64 %125)
  %127 = add i64 %48, 64
  %128 = icmp ult i64 %127, %11
  br i1 %128, label %47, label %30, !llvm.loop !4

129:                                              ; preds = %30, %6
  %130 = phi i64 [ %10, %6 ], [ %43, %30 ]
  %131 = phi i64 [ %8, %6 ], [ %45, %30 ]
  %132 = phi ptr [ %7, %6 ], [ %44, %30 ]
  %133 = getelementptr inbounds %struct.Stream, ptr %9, i64 1
  %134 = icmp ult ptr %133, getelementptr inbounds ([2 x %struct.Stream], ptr @STREAMS, i64 1, i64 0)
  br i1 %134, label %6, label %22, !llvm.loop !5

135:                                              ; preds = %140, %22
  %136 = phi i64 [ %130, %22 ], [ %145, %140 ]
  %137 = phi i64 [ %131, %22 ], [ %147, %140 ]
  %138 = phi ptr [ %132, %22 ], [ %146, %140 ]
  %139 = icmp eq i64 %137, 0
  br i1 %139, label %162, label %149

140:                                              ; preds = %22, %140
  %141 = phi ptr [ %146, %140 ], [ %132, %22 ]
  %142 = phi i64 [ %147, %140 ], [ %131, %22 ]
  %143 = phi i64 [ %145, %140 ], [ %130, %22 ]
  %144 = load i64, ptr %141, align 1
  %145 = tail call i64 @llvm.x86.sse42.crc32.64.64(i64 %143, i64 %144)
  %146 = getelementptr inbounds i8, ptr %141, i64 8
  %147 = add i64 %142, -8
  %148 = icmp ugt i64 %147, 7
  br i1 %148, label %140, label %135, !llvm.loop !6

149:                                              ; preds = %135, %149
  %150 = phi ptr [ %157, %149 ], [ %138, %135 ]
  %151 = phi i64 [ %158, %149 ], [ %137, %135 ]
  %152 = phi i64 [ %156, %149 ], [ %136, %135 ]
  %153 = trunc i64 %152 to i32
  %154 = load i8, ptr %150, align 1
  %155 = tail call i32 @llvm.x86.sse42.crc32.32.8(i32 %153, i8 %154)
  %156 = zext i32 %155 to i64
  %157 = getelementptr inbounds i8, ptr %150, i64 1
  %158 = add i64 %151, -1
  %159 = icmp eq i64 %158, 0
  br i1 %159, label %160, label %149, !llvm.loop !7

160:                                              ; preds = %149
  %161 = zext i32 %155 to i64
  br label %162

162:                                              ; preds = %160, %135
  %163 = phi i64 [ %136, %135 ], [ %161, %160 ]
  %164 = trunc i64 %163 to i32
  %165 = xor i32 %164, -1
  ret i32 %165
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @llvm.prefetch.p0(ptr nocapture readonly, i32 immarg, i32 immarg, i32 immarg) #1

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(none)
declare i64 @llvm.x86.sse42.crc32.64.64(i64, i64) #2

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(none)
declare i32 @llvm.x86.sse42.crc32.32.8(i32, i8) #2

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(none)
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg) #2

attributes #0 = { nounwind }
attributes #1 = { nounwind }
attributes #2 = { nounwind }


!0 = !{i32 1, !"wchar_size", i32 4}
!1 = distinct !{!1, !2, !3}
!2 = !{!"llvm.loop.mustprogress"}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = distinct !{!4, !2, !3}
!5 = distinct !{!5, !2, !3}
!6 = distinct !{!6, !2, !3}
!7 = distinct !{!7, !2, !3}

; Compiled from gather_kernel.c by scripts/compile_kernels.py: 53b983e3a0fcd179d4690ed0544643b487c69a273bdfe48b717abf2668c23b9e 476253862dfd7981cda7a625c5bf92e106a85d610eee5f1f285f9f89149ceb97
%struct.Table = type { ptr, ptr, ptr, i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64 }
%struct.State = type { [16 x i64], [16 x i64], [16 x i64], i64, i64, ptr }

@key = dso_local local_unnamed_addr global i32 0, align 4
@page = dso_local local_unnamed_addr global i64 0, align 8
@lost = dso_local global i64 0, align 8
@previous = dso_local global [152 x i8] zeroinitializer, align 16

; Function Attrs: nofree nounwind
define dso_local void @copy_pieces(ptr nocapture noundef readonly %0) local_unnamed_addr #0 {
  %2 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 3
  %3 = load i64, ptr %2, align 8
  %4 = icmp sgt i64 %3, 0
  br i1 %4, label %5, label %21

5:                                                ; preds = %1
  %6 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %7 = load ptr, ptr %6, align 8
  br label %13

8:                                                ; preds = %13
  br i1 %4, label %9, label %21

9:                                                ; preds = %8
  %10 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %11 = icmp slt i64 %18, 2097152
  %12 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  br label %22

13:                                               ; preds = %5, %13
  %14 = phi i64 [ 0, %5 ], [ %18, %13 ]
  %15 = phi i64 [ 0, %5 ], [ %19, %13 ]
  %16 = getelementptr inbounds i64, ptr %7, i64 %15
  %17 = load i64, ptr %16, align 8
  %18 = add nsw i64 %17, %14
  %19 = add nuw nsw i64 %15, 1
  %20 = icmp eq i64 %19, %3
  br i1 %20, label %8, label %13, !llvm.loop !1

21:                                               ; preds = %71, %1, %8
  fence seq_cst
  ret void

22:                                               ; preds = %9, %71
  %23 = phi i64 [ %3, %9 ], [ %72, %71 ]
  %24 = phi i64 [ 0, %9 ], [ %28, %71 ]
  %25 = load ptr, ptr %10, align 8
  %26 = getelementptr inbounds i64, ptr %25, i64 %24
  %27 = load i64, ptr %26, align 8
  %28 = add nuw nsw i64 %24, 1
  %29 = icmp slt i64 %27, 1024
  %30 = select i1 %11, i1 true, i1 %29
  br i1 %30, label %31, label %38

31:                                               ; preds = %22
  %32 = load ptr, ptr %12, align 8
  %33 = getelementptr inbounds ptr, ptr %32, i64 %24
  %34 = load ptr, ptr %33, align 8
  %35 = load ptr, ptr %0, align 8
  %36 = getelementptr inbounds ptr, ptr %35, i64 %24
  %37 = load ptr, ptr %36, align 8
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %34, ptr align 1 %37, i64 %27, i1 false)
  br label %71

38:                                               ; preds = %22
  %39 = icmp slt i64 %28, %23
  %40 = select i1 %39, i64 %28, i64 %24
  %41 = load ptr, ptr %12, align 8
  %42 = getelementptr inbounds ptr, ptr %41, i64 %24
  %43 = load ptr, ptr %42, align 8
  %44 = load ptr, ptr %0, align 8
  %45 = getelementptr inbounds ptr, ptr %44, i64 %24
  %46 = load ptr, ptr %45, align 8
  %47 = getelementptr inbounds ptr, ptr %44, i64 %40
  %48 = load ptr, ptr %47, align 8
  %49 = getelementptr inbounds i64, ptr %25, i64 %40
  %50 = load i64, ptr %49, align 8
  %51 = ptrtoint ptr %43 to i64
  %52 = sub nsw i64 0, %51
  %53 = and i64 %52, 63
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %43, ptr align 1 %46, i64 %53, i1 false)
  %54 = or i64 %53, 64
  br label %55

55:                                               ; preds = %38, %61
  %56 = phi i64 [ %65, %61 ], [ %54, %38 ]
  %57 = phi i64 [ %56, %61 ], [ %53, %38 ]
  %58 = icmp slt i64 %57, %50
  br i1 %58, label %59, label %61

59:                                               ; preds = %55
  %60 = getelementptr inbounds i8, ptr %48, i64 %57
  tail call void @llvm.prefetch.p0(ptr %60, i32 0, i32 2, i32 1)
  br label %61

61:                                               ; preds = %59, %55
  %62 = getelementptr inbounds i8, ptr %46, i64 %57
  %63 = load <8 x i64>, ptr %62, align 1
  %64 = getelementptr inbounds i8, ptr %43, i64 %57
  store <8 x i64> %63, ptr %64, align 64, !nontemporal !4
  %65 = add nuw nsw i64 %56, 64
  %66 = icmp sgt i64 %65, %27
  br i1 %66, label %67, label %55, !llvm.loop !5

67:                                               ; preds = %61
  %68 = getelementptr inbounds i8, ptr %43, i64 %56
  %69 = getelementptr inbounds i8, ptr %46, i64 %56
  %70 = sub nsw i64 %27, %56
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %68, ptr align 1 %69, i64 %70, i1 false)
  br label %71

71:                                               ; preds = %67, %31
  %72 = load i64, ptr %2, align 8
  %73 = icmp slt i64 %28, %72
  br i1 %73, label %22, label %21, !llvm.loop !6
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #1

; Function Attrs: nounwind
define dso_local void @check_chunks(ptr nocapture noundef readonly %0) local_unnamed_addr #2 {
  %2 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 12
  %3 = load i64, ptr %2, align 8
  %4 = icmp sgt i64 %3, 0
  br i1 %4, label %5, label %9

5:                                                ; preds = %1
  %6 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 9
  %7 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  %8 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  br label %22

9:                                                ; preds = %22, %1
  %10 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 3
  %11 = load i64, ptr %10, align 8
  %12 = icmp sgt i64 %11, 0
  br i1 %12, label %13, label %35

13:                                               ; preds = %9
  %14 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 9
  %15 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  %16 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %17 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 11
  %18 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 10
  %19 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6
  %20 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 7
  %21 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 8
  br label %36

22:                                               ; preds = %5, %22
  %23 = phi i64 [ 0, %5 ], [ %32, %22 ]
  %24 = load ptr, ptr %6, align 8
  %25 = load ptr, ptr %7, align 8
  %26 = getelementptr inbounds ptr, ptr %25, i64 %23
  %27 = load ptr, ptr %26, align 8
  %28 = load ptr, ptr %8, align 8
  %29 = getelementptr inbounds i64, ptr %28, i64 %23
  %30 = load i64, ptr %29, align 8
  %31 = tail call i32 %24(ptr noundef %27, i64 noundef %30, i32 noundef 3) #5
  %32 = add nuw nsw i64 %23, 1
  %33 = load i64, ptr %2, align 8
  %34 = icmp slt i64 %32, %33
  br i1 %34, label %22, label %9, !llvm.loop !7

35:                                               ; preds = %76, %9
  ret void

36:                                               ; preds = %13, %76
  %37 = phi i64 [ 0, %13 ], [ %80, %76 ]
  %38 = load ptr, ptr %14, align 8
  %39 = load ptr, ptr %15, align 8
  %40 = getelementptr inbounds ptr, ptr %39, i64 %37
  %41 = load ptr, ptr %40, align 8
  %42 = load ptr, ptr %16, align 8
  %43 = getelementptr inbounds i64, ptr %42, i64 %37
  %44 = load i64, ptr %43, align 8
  %45 = load i64, ptr %17, align 8
  %46 = trunc i64 %45 to i32
  %47 = tail call i32 %38(ptr noundef %41, i64 noundef %44, i32 noundef %46) #5
  %48 = icmp eq i32 %47, 0
  br i1 %48, label %49, label %76

49:                                               ; preds = %36
  %50 = load ptr, ptr %18, align 8
  %51 = load ptr, ptr %0, align 8
  %52 = getelementptr inbounds ptr, ptr %51, i64 %37
  %53 = load ptr, ptr %52, align 8
  %54 = load ptr, ptr %19, align 8
  %55 = getelementptr inbounds i64, ptr %54, i64 %37
  %56 = load i64, ptr %55, align 8
  %57 = tail call i32 %50(i32 noundef 0, ptr noundef %53, i64 noundef %56) #5
  %58 = load ptr, ptr %0, align 8
  %59 = getelementptr inbounds ptr, ptr %58, i64 %37
  %60 = load ptr, ptr %59, align 8
  %61 = load ptr, ptr %19, align 8
  %62 = getelementptr inbounds i64, ptr %61, i64 %37
  %63 = load i64, ptr %62, align 8
  %64 = getelementptr inbounds i8, ptr %60, i64 %63
  %65 = load i32, ptr %64, align 1
  %66 = icmp eq i32 %57, %65
  br i1 %66, label %67, label %76

67:                                               ; preds = %49
  %68 = load ptr, ptr %20, align 8
  %69 = getelementptr inbounds i64, ptr %68, i64 %37
  %70 = load i64, ptr %69, align 8
  %71 = icmp slt i64 %70, 0
  br i1 %71, label %76, label %72

72:                                               ; preds = %67
  %73 = zext i32 %57 to i64
  %74 = icmp eq i64 %70, %73
  %75 = zext i1 %74 to i8
  br label %76

76:                                               ; preds = %36, %49, %67, %72
  %77 = phi i8 [ 0, %36 ], [ 0, %49 ], [ 1, %67 ], [ %75, %72 ]
  %78 = load ptr, ptr %21, align 8
  %79 = getelementptr inbounds i8, ptr %78, i64 %37
  store i8 %77, ptr %79, align 1
  %80 = add nuw nsw i64 %37, 1
  %81 = load i64, ptr %10, align 8
  %82 = icmp slt i64 %80, %81
  br i1 %82, label %36, label %35, !llvm.loop !8
}

; Function Attrs: nounwind
define dso_local void @process(ptr noundef %0) local_unnamed_addr #2 {
  %2 = load i32, ptr @key, align 4
  %3 = tail call i32 @pthread_setspecific(i32 noundef %2, ptr noundef %0) #5
  %4 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 5
  %5 = load ptr, ptr %4, align 8
  tail call void %5(ptr noundef %0) #5
  %6 = load i32, ptr @key, align 4
  %7 = tail call i32 @pthread_setspecific(i32 noundef %6, ptr noundef null) #5
  ret void
}

declare dso_local i32 @pthread_setspecific(i32 noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local void @on_bus_error(i32 noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readnone %2) local_unnamed_addr #2 {
  %4 = getelementptr inbounds i32, ptr %1, i64 2
  %5 = load i32, ptr %4, align 4
  %6 = load i32, ptr @key, align 4
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #5
  %8 = icmp eq ptr %7, null
  br i1 %8, label %24, label %9

9:                                                ; preds = %3
  %10 = icmp slt i32 %5, 1
  br i1 %10, label %26, label %11

11:                                               ; preds = %9
  %12 = icmp eq i32 %5, 2
  br i1 %12, label %13, label %24

13:                                               ; preds = %11
  %14 = getelementptr inbounds i32, ptr %1, i64 4
  %15 = load i64, ptr %14, align 8
  %16 = load i64, ptr @page, align 8
  %17 = sub nsw i64 0, %16
  %18 = and i64 %15, %17
  %19 = inttoptr i64 %18 to ptr
  %20 = tail call ptr @mmap(ptr noundef %19, i64 noundef %16, i32 noundef 1, i32 noundef 50, i32 noundef -1, i64 noundef 0) #5
  %21 = icmp eq ptr %20, %19
  br i1 %21, label %22, label %24

22:                                               ; preds = %13
  %23 = atomicrmw add ptr @lost, i64 1 seq_cst, align 8
  br label %26

24:                                               ; preds = %13, %11, %3
  %25 = tail call i32 @sigaction(i32 noundef %0, ptr noundef nonnull @previous, ptr noundef null) #5
  br label %26

26:                                               ; preds = %22, %9, %24
  ret void
}

declare dso_local ptr @pthread_getspecific(i32 noundef) local_unnamed_addr #3

declare dso_local ptr @mmap(ptr noundef, i64 noundef, i32 noundef, i32 noundef, i32 noundef, i64 noundef) local_unnamed_addr #3

declare dso_local i32 @sigaction(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local void @submit(ptr noundef %0, i64 noundef %1) local_unnamed_addr #2 {
  %3 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #5
  %4 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 3
  %5 = load i64, ptr %4, align 8
  %6 = add nsw i64 %5, %1
  store i64 %6, ptr %4, align 8
  %7 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 1
  %8 = tail call i32 @pthread_cond_signal(ptr noundef nonnull %7) #5
  %9 = tail call i32 @pthread_mutex_unlock(ptr noundef %0) #5
  ret void
}

declare dso_local i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #3

declare dso_local i32 @pthread_cond_signal(ptr noundef) local_unnamed_addr #3

declare dso_local i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local i64 @wait(ptr noundef %0, i64 noundef %1) local_unnamed_addr #2 {
  %3 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #5
  %4 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 4
  %5 = load i64, ptr %4, align 8
  %6 = icmp slt i64 %5, %1
  br i1 %6, label %7, label %13

7:                                                ; preds = %2
  %8 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 2
  br label %9

9:                                                ; preds = %7, %9
  %10 = tail call i32 @pthread_cond_wait(ptr noundef nonnull %8, ptr noundef nonnull %0) #5
  %11 = load i64, ptr %4, align 8
  %12 = icmp slt i64 %11, %1
  br i1 %12, label %9, label %13, !llvm.loop !9

13:                                               ; preds = %9, %2
  %14 = phi i64 [ %5, %2 ], [ %11, %9 ]
  %15 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %0) #5
  ret i64 %14
}

declare dso_local i32 @pthread_cond_wait(ptr noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local ptr @serve(ptr noundef %0) local_unnamed_addr #2 {
  %2 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #5
  %3 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 5
  %4 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 3
  %5 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 4
  %6 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 1
  %7 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 2
  br label %8

8:                                                ; preds = %23, %1
  %9 = load i64, ptr %4, align 8
  %10 = load i64, ptr %5, align 8
  %11 = icmp eq i64 %9, %10
  br i1 %11, label %12, label %17

12:                                               ; preds = %8, %12
  %13 = tail call i32 @pthread_cond_wait(ptr noundef nonnull %6, ptr noundef nonnull %0) #5
  %14 = load i64, ptr %4, align 8
  %15 = load i64, ptr %5, align 8
  %16 = icmp eq i64 %14, %15
  br i1 %16, label %12, label %17, !llvm.loop !10

17:                                               ; preds = %12, %8
  %18 = load ptr, ptr %3, align 8
  %19 = getelementptr inbounds %struct.Table, ptr %18, i64 0, i32 4
  %20 = load ptr, ptr %19, align 8
  store ptr %20, ptr %3, align 8
  %21 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %0) #5
  %22 = icmp eq ptr %20, null
  br i1 %22, label %34, label %23

23:                                               ; preds = %17
  %24 = load i32, ptr @key, align 4
  %25 = tail call i32 @pthread_setspecific(i32 noundef %24, ptr noundef nonnull %20) #5
  %26 = getelementptr inbounds %struct.Table, ptr %20, i64 0, i32 5
  %27 = load ptr, ptr %26, align 8
  tail call void %27(ptr noundef nonnull %20) #5
  %28 = load i32, ptr @key, align 4
  %29 = tail call i32 @pthread_setspecific(i32 noundef %28, ptr noundef null) #5
  %30 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %0) #5
  %31 = load i64, ptr %5, align 8
  %32 = add nsw i64 %31, 1
  store i64 %32, ptr %5, align 8
  %33 = tail call i32 @pthread_cond_signal(ptr noundef nonnull %7) #5
  br label %8

34:                                               ; preds = %17
  ret ptr null
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @llvm.prefetch.p0(ptr nocapture readonly, i32 immarg, i32 immarg, i32 immarg) #4

attributes #0 = { nounwind }
attributes #1 = { nounwind }
attributes #2 = { nounwind }
attributes #3 = { nounwind }
attributes #4 = { nounwind }
attributes #5 = { nounwind }


!0 = !{i32 1, !"wchar_size", i32 4}
!1 = distinct !{!1, !2, !3}
!2 = !{!"llvm.loop.mustprogress"}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = !{i32 1}
!5 = distinct !{!5, !2, !3}
!6 = distinct !{!6, !2, !3}
!7 = distinct !{!7, !2, !3}
!8 = distinct !{!8, !2, !3}
!9 = distinct !{!9, !2, !3}
!10 = distinct !{!10, !2, !3}

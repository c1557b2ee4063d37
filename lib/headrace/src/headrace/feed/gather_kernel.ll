; Compiled from gather_kernel.c by scripts/compile_kernels.py: d45a346bed2552860d43c0a28cbcf8540340db9fe2bbef2408d8e561883b69b5 62335411cf189f32fb72347445c96bc8ff2ca2be6ea240ced756f236c2e22981
%struct.Table = type { ptr, ptr, ptr, i64, ptr, ptr, %union.anon }
%union.anon = type { %struct.anon.0 }
%struct.anon.0 = type { ptr, ptr, ptr, ptr, ptr, i64, i64 }
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
  br i1 %4, label %8, label %5

5:                                                ; preds = %1
  %6 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6
  %7 = load ptr, ptr %6, align 8
  br label %30

8:                                                ; preds = %1
  %9 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %10 = load ptr, ptr %9, align 8
  br label %20

11:                                               ; preds = %20
  %12 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6
  %13 = load ptr, ptr %12, align 8
  br i1 %4, label %14, label %30

14:                                               ; preds = %11
  %15 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  %16 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %17 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 3
  %18 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 2
  %19 = icmp slt i64 %25, 2097152
  br label %34

20:                                               ; preds = %8, %20
  %21 = phi i64 [ 0, %8 ], [ %25, %20 ]
  %22 = phi i64 [ 0, %8 ], [ %26, %20 ]
  %23 = getelementptr inbounds i64, ptr %10, i64 %22
  %24 = load i64, ptr %23, align 8
  %25 = add nsw i64 %24, %21
  %26 = add nuw nsw i64 %22, 1
  %27 = icmp eq i64 %26, %3
  br i1 %27, label %11, label %20, !llvm.loop !1

28:                                               ; preds = %98
  %29 = load ptr, ptr %12, align 8
  br label %30

30:                                               ; preds = %5, %28, %11
  %31 = phi ptr [ %13, %11 ], [ %29, %28 ], [ %7, %5 ]
  %32 = phi ptr [ %13, %11 ], [ %65, %28 ], [ %7, %5 ]
  %33 = icmp eq ptr %31, null
  br i1 %33, label %118, label %101

34:                                               ; preds = %14, %98
  %35 = phi i64 [ %3, %14 ], [ %99, %98 ]
  %36 = phi ptr [ %13, %14 ], [ %65, %98 ]
  %37 = phi i64 [ 0, %14 ], [ %44, %98 ]
  %38 = load ptr, ptr %15, align 8
  %39 = getelementptr inbounds ptr, ptr %38, i64 %37
  %40 = load ptr, ptr %39, align 8
  %41 = load ptr, ptr %16, align 8
  %42 = getelementptr inbounds i64, ptr %41, i64 %37
  %43 = load i64, ptr %42, align 8
  %44 = add nuw nsw i64 %37, 1
  %45 = icmp slt i64 %44, %35
  %46 = select i1 %45, i64 %44, i64 %37
  %47 = load ptr, ptr %12, align 8
  %48 = icmp ne ptr %47, null
  %49 = icmp ult ptr %36, %40
  %50 = select i1 %48, i1 %49, i1 false
  br i1 %50, label %51, label %62

51:                                               ; preds = %34
  %52 = ptrtoint ptr %40 to i64
  br label %53

53:                                               ; preds = %53, %51
  %54 = phi ptr [ %36, %51 ], [ %60, %53 ]
  %55 = ptrtoint ptr %54 to i64
  %56 = sub i64 %52, %55
  %57 = load i64, ptr %17, align 8
  %58 = tail call i64 @llvm.smin.i64(i64 %56, i64 %57)
  %59 = load ptr, ptr %18, align 8
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %54, ptr align 1 %59, i64 %58, i1 false)
  %60 = getelementptr inbounds i8, ptr %54, i64 %58
  %61 = icmp ult ptr %60, %40
  br i1 %61, label %53, label %62, !llvm.loop !4

62:                                               ; preds = %53, %34
  %63 = getelementptr inbounds i8, ptr %40, i64 %43
  %64 = icmp ugt ptr %63, %36
  %65 = select i1 %64, ptr %63, ptr %36
  %66 = icmp slt i64 %43, 1024
  %67 = select i1 %19, i1 true, i1 %66
  %68 = load ptr, ptr %0, align 8
  %69 = getelementptr inbounds ptr, ptr %68, i64 %37
  %70 = load ptr, ptr %69, align 8
  br i1 %67, label %71, label %72

71:                                               ; preds = %62
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %40, ptr align 1 %70, i64 %43, i1 false)
  br label %98

72:                                               ; preds = %62
  %73 = getelementptr inbounds ptr, ptr %68, i64 %46
  %74 = load ptr, ptr %73, align 8
  %75 = load ptr, ptr %16, align 8
  %76 = getelementptr inbounds i64, ptr %75, i64 %46
  %77 = load i64, ptr %76, align 8
  %78 = ptrtoint ptr %40 to i64
  %79 = sub nsw i64 0, %78
  %80 = and i64 %79, 63
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %40, ptr align 1 %70, i64 %80, i1 false)
  %81 = or i64 %80, 64
  br label %82

82:                                               ; preds = %72, %88
  %83 = phi i64 [ %92, %88 ], [ %81, %72 ]
  %84 = phi i64 [ %83, %88 ], [ %80, %72 ]
  %85 = icmp slt i64 %84, %77
  br i1 %85, label %86, label %88

86:                                               ; preds = %82
  %87 = getelementptr inbounds i8, ptr %74, i64 %84
  tail call void @llvm.prefetch.p0(ptr %87, i32 0, i32 2, i32 1)
  br label %88

88:                                               ; preds = %86, %82
  %89 = getelementptr inbounds i8, ptr %70, i64 %84
  %90 = load <8 x i64>, ptr %89, align 1
  %91 = getelementptr inbounds i8, ptr %40, i64 %84
  store <8 x i64> %90, ptr %91, align 64, !nontemporal !5
  %92 = add nuw nsw i64 %83, 64
  %93 = icmp sgt i64 %92, %43
  br i1 %93, label %94, label %82, !llvm.loop !6

94:                                               ; preds = %88
  %95 = getelementptr inbounds i8, ptr %40, i64 %83
  %96 = getelementptr inbounds i8, ptr %70, i64 %83
  %97 = sub nsw i64 %43, %83
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %95, ptr align 1 %96, i64 %97, i1 false)
  br label %98

98:                                               ; preds = %94, %71
  %99 = load i64, ptr %2, align 8
  %100 = icmp slt i64 %44, %99
  br i1 %100, label %34, label %28, !llvm.loop !7

101:                                              ; preds = %30
  %102 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 1
  %103 = load ptr, ptr %102, align 8
  %104 = icmp ult ptr %32, %103
  br i1 %104, label %105, label %118

105:                                              ; preds = %101
  %106 = ptrtoint ptr %103 to i64
  %107 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 3
  %108 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 2
  br label %109

109:                                              ; preds = %109, %105
  %110 = phi ptr [ %32, %105 ], [ %116, %109 ]
  %111 = ptrtoint ptr %110 to i64
  %112 = sub i64 %106, %111
  %113 = load i64, ptr %107, align 8
  %114 = tail call i64 @llvm.smin.i64(i64 %112, i64 %113)
  %115 = load ptr, ptr %108, align 8
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %110, ptr align 1 %115, i64 %114, i1 false)
  %116 = getelementptr inbounds i8, ptr %110, i64 %114
  %117 = icmp ult ptr %116, %103
  br i1 %117, label %109, label %118, !llvm.loop !4

118:                                              ; preds = %109, %101, %30
  fence seq_cst
  ret void
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #1

; Function Attrs: nounwind
define dso_local void @check_chunks(ptr nocapture noundef readonly %0) local_unnamed_addr #2 {
  %2 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 6
  %3 = load i64, ptr %2, align 8
  %4 = icmp sgt i64 %3, 0
  br i1 %4, label %5, label %9

5:                                                ; preds = %1
  %6 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 3
  %7 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  %8 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  br label %22

9:                                                ; preds = %22, %1
  %10 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 3
  %11 = load i64, ptr %10, align 8
  %12 = icmp sgt i64 %11, 0
  br i1 %12, label %13, label %35

13:                                               ; preds = %9
  %14 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 3
  %15 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 1
  %16 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 2
  %17 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 5
  %18 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6
  %19 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 4
  %20 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 1
  %21 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 6, i32 0, i32 2
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
  %31 = tail call i32 %24(ptr noundef %27, i64 noundef %30, i32 noundef 3) #6
  %32 = add nuw nsw i64 %23, 1
  %33 = load i64, ptr %2, align 8
  %34 = icmp slt i64 %32, %33
  br i1 %34, label %22, label %9, !llvm.loop !8

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
  %47 = tail call i32 %38(ptr noundef %41, i64 noundef %44, i32 noundef %46) #6
  %48 = icmp eq i32 %47, 0
  br i1 %48, label %49, label %76

49:                                               ; preds = %36
  %50 = load ptr, ptr %19, align 8
  %51 = load ptr, ptr %0, align 8
  %52 = getelementptr inbounds ptr, ptr %51, i64 %37
  %53 = load ptr, ptr %52, align 8
  %54 = load ptr, ptr %18, align 8
  %55 = getelementptr inbounds i64, ptr %54, i64 %37
  %56 = load i64, ptr %55, align 8
  %57 = tail call i32 %50(i32 noundef 0, ptr noundef %53, i64 noundef %56) #6
  %58 = load ptr, ptr %0, align 8
  %59 = getelementptr inbounds ptr, ptr %58, i64 %37
  %60 = load ptr, ptr %59, align 8
  %61 = load ptr, ptr %18, align 8
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
  br i1 %82, label %36, label %35, !llvm.loop !9
}

; Function Attrs: nounwind
define dso_local void @process(ptr noundef %0) local_unnamed_addr #2 {
  %2 = load i32, ptr @key, align 4
  %3 = tail call i32 @pthread_setspecific(i32 noundef %2, ptr noundef %0) #6
  %4 = getelementptr inbounds %struct.Table, ptr %0, i64 0, i32 5
  %5 = load ptr, ptr %4, align 8
  tail call void %5(ptr noundef %0) #6
  %6 = load i32, ptr @key, align 4
  %7 = tail call i32 @pthread_setspecific(i32 noundef %6, ptr noundef null) #6
  ret void
}

declare dso_local i32 @pthread_setspecific(i32 noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local void @on_bus_error(i32 noundef %0, ptr nocapture noundef readonly %1, ptr nocapture noundef readnone %2) local_unnamed_addr #2 {
  %4 = getelementptr inbounds i32, ptr %1, i64 2
  %5 = load i32, ptr %4, align 4
  %6 = load i32, ptr @key, align 4
  %7 = tail call ptr @pthread_getspecific(i32 noundef %6) #6
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
  %20 = tail call ptr @mmap(ptr noundef %19, i64 noundef %16, i32 noundef 1, i32 noundef 50, i32 noundef -1, i64 noundef 0) #6
  %21 = icmp eq ptr %20, %19
  br i1 %21, label %22, label %24

22:                                               ; preds = %13
  %23 = atomicrmw add ptr @lost, i64 1 seq_cst, align 8
  br label %26

24:                                               ; preds = %13, %11, %3
  %25 = tail call i32 @sigaction(i32 noundef %0, ptr noundef nonnull @previous, ptr noundef null) #6
  br label %26

26:                                               ; preds = %22, %9, %24
  ret void
}

declare dso_local ptr @pthread_getspecific(i32 noundef) local_unnamed_addr #3

declare dso_local ptr @mmap(ptr noundef, i64 noundef, i32 noundef, i32 noundef, i32 noundef, i64 noundef) local_unnamed_addr #3

declare dso_local i32 @sigaction(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local void @submit(ptr noundef %0, i64 noundef %1) local_unnamed_addr #2 {
  %3 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #6
  %4 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 3
  %5 = load i64, ptr %4, align 8
  %6 = add nsw i64 %5, %1
  store i64 %6, ptr %4, align 8
  %7 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 1
  %8 = tail call i32 @pthread_cond_signal(ptr noundef nonnull %7) #6
  %9 = tail call i32 @pthread_mutex_unlock(ptr noundef %0) #6
  ret void
}

declare dso_local i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #3

declare dso_local i32 @pthread_cond_signal(ptr noundef) local_unnamed_addr #3

declare dso_local i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local i64 @wait(ptr noundef %0, i64 noundef %1) local_unnamed_addr #2 {
  %3 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #6
  %4 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 4
  %5 = load i64, ptr %4, align 8
  %6 = icmp slt i64 %5, %1
  br i1 %6, label %7, label %13

7:                                                ; preds = %2
  %8 = getelementptr inbounds %struct.State, ptr %0, i64 0, i32 2
  br label %9

9:                                                ; preds = %7, %9
  %10 = tail call i32 @pthread_cond_wait(ptr noundef nonnull %8, ptr noundef nonnull %0) #6
  %11 = load i64, ptr %4, align 8
  %12 = icmp slt i64 %11, %1
  br i1 %12, label %9, label %13, !llvm.loop !10

13:                                               ; preds = %9, %2
  %14 = phi i64 [ %5, %2 ], [ %11, %9 ]
  %15 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %0) #6
  ret i64 %14
}

declare dso_local i32 @pthread_cond_wait(ptr noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: nounwind
define dso_local ptr @serve(ptr noundef %0) local_unnamed_addr #2 {
  %2 = tail call i32 @pthread_mutex_lock(ptr noundef %0) #6
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
  %13 = tail call i32 @pthread_cond_wait(ptr noundef nonnull %6, ptr noundef nonnull %0) #6
  %14 = load i64, ptr %4, align 8
  %15 = load i64, ptr %5, align 8
  %16 = icmp eq i64 %14, %15
  br i1 %16, label %12, label %17, !llvm.loop !11

17:                                               ; preds = %12, %8
  %18 = load ptr, ptr %3, align 8
  %19 = getelementptr inbounds %struct.Table, ptr %18, i64 0, i32 4
  %20 = load ptr, ptr %19, align 8
  store ptr %20, ptr %3, align 8
  %21 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull %0) #6
  %22 = icmp eq ptr %20, null
  br i1 %22, label %34, label %23

23:                                               ; preds = %17
  %24 = load i32, ptr @key, align 4
  %25 = tail call i32 @pthread_setspecific(i32 noundef %24, ptr noundef nonnull %20) #6
  %26 = getelementptr inbounds %struct.Table, ptr %20, i64 0, i32 5
  %27 = load ptr, ptr %26, align 8
  tail call void %27(ptr noundef nonnull %20) #6
  %28 = load i32, ptr @key, align 4
  %29 = tail call i32 @pthread_setspecific(i32 noundef %28, ptr noundef null) #6
  %30 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %0) #6
  %31 = load i64, ptr %5, align 8
  %32 = add nsw i64 %31, 1
  store i64 %32, ptr %5, align 8
  %33 = tail call i32 @pthread_cond_signal(ptr noundef nonnull %7) #6
  br label %8

34:                                               ; preds = %17
  ret ptr null
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @llvm.prefetch.p0(ptr nocapture readonly, i32 immarg, i32 immarg, i32 immarg) #4

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smin.i64(i64, i64) #5

attributes #0 = { nounwind }
attributes #1 = { nounwind }
attributes #2 = { nounwind }
attributes #3 = { nounwind }
attributes #4 = { nounwind }
attributes #5 = { nounwind }
attributes #6 = { nounwind }


!0 = !{i32 1, !"wchar_size", i32 4}
!1 = distinct !{!1, !2, !3}
!2 = !{!"llvm.loop.mustprogress"}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = distinct !{!4, !2, !3}
!5 = !{i32 1}
!6 = distinct !{!6, !2, !3}
!7 = distinct !{!7, !2, !3}
!8 = distinct !{!8, !2, !3}
!9 = distinct !{!9, !2, !3}
!10 = distinct !{!10, !2, !3}
!11 = distinct !{!11, !2, !3}

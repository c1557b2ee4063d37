; The functions of feed/gather_kernel.py, which says what they are for.
;
; A table is a row of 8-byte fields. Of every table:
;   3  how many entries its arrays have
;   4  the table that was submitted after it, or 0 at the end of the thread
;   5  the function that works it off

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)

@key = global i32 0                            ; of the table that a thread processes
@page = global i64 0                           ; bytes of a page
@previous = global [152 x i8] zeroinitializer  ; the struct sigaction that was replaced
@lost = global i64 0                           ; pages that were missing from their files

; mutex; conditions: work, result; tables submitted, tables done; the table that was begun last
%state = type { [16 x i64], [16 x i64], [16 x i64], i64, i64, ptr }

; Copies pieces: 0 their addresses, 1 their targets, 2 their bytes.
define void @copy_pieces(ptr %table) {
begin:
  %targets.at = getelementptr ptr, ptr %table, i64 1
  %sizes.at = getelementptr ptr, ptr %table, i64 2
  %count.at = getelementptr i64, ptr %table, i64 3
  %addresses = load ptr, ptr %table
  %targets = load ptr, ptr %targets.at
  %sizes = load ptr, ptr %sizes.at
  %count = load i64, ptr %count.at
  br label %next
next:
  %k = phi i64 [ 0, %begin ], [ %k.after, %copy ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %copy, label %end
copy:
  %address.at = getelementptr ptr, ptr %addresses, i64 %k
  %target.at = getelementptr ptr, ptr %targets, i64 %k
  %size.at = getelementptr i64, ptr %sizes, i64 %k
  %address = load ptr, ptr %address.at
  %target = load ptr, ptr %target.at
  %size = load i64, ptr %size.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %address, i64 %size, i1 false)
  %k.after = add i64 %k, 1
  br label %next
end:
  ret void
}

; Holds chunks against their checksums: 0 their addresses, 1 where their first pages begin, 2 the bytes of their pages,
; 6 their bytes, which their checksums follow, 7 the checksums that are named for them (-1: none), 8 the results, bytes:
; 1 where a chunk is right. 9 madvise, 10 crc32c, 11 what to advise so that pages come; 12 for how many of the chunks
; from these on the system is asked to begin reading, before the first is looked at.
define void @check_chunks(ptr %table) {
begin:
  %lows.at = getelementptr ptr, ptr %table, i64 1
  %lengths.at = getelementptr ptr, ptr %table, i64 2
  %count.at = getelementptr i64, ptr %table, i64 3
  %sizes.at = getelementptr ptr, ptr %table, i64 6
  %named.at = getelementptr ptr, ptr %table, i64 7
  %results.at = getelementptr ptr, ptr %table, i64 8
  %madvise.at = getelementptr ptr, ptr %table, i64 9
  %crc32c.at = getelementptr ptr, ptr %table, i64 10
  %advice.at = getelementptr i64, ptr %table, i64 11
  %ahead.at = getelementptr i64, ptr %table, i64 12
  %addresses = load ptr, ptr %table
  %lows = load ptr, ptr %lows.at
  %lengths = load ptr, ptr %lengths.at
  %count = load i64, ptr %count.at
  %sizes = load ptr, ptr %sizes.at
  %named = load ptr, ptr %named.at
  %results = load ptr, ptr %results.at
  %madvise = load ptr, ptr %madvise.at
  %crc32c = load ptr, ptr %crc32c.at
  %advice.wide = load i64, ptr %advice.at
  %advice = trunc i64 %advice.wide to i32
  %ahead = load i64, ptr %ahead.at
  br label %ask.next
ask.next:
  %j = phi i64 [ 0, %begin ], [ %j.after, %ask ]
  %ask.more = icmp ult i64 %j, %ahead
  br i1 %ask.more, label %ask, label %next
ask:
  %ask.low.at = getelementptr ptr, ptr %lows, i64 %j
  %ask.length.at = getelementptr i64, ptr %lengths, i64 %j
  %ask.low = load ptr, ptr %ask.low.at
  %ask.length = load i64, ptr %ask.length.at
  call i32 %madvise(ptr %ask.low, i64 %ask.length, i32 3)
  %j.after = add i64 %j, 1
  br label %ask.next
next:
  %k = phi i64 [ 0, %ask.next ], [ %k.after, %record ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %bring, label %end
bring:
  %low.at = getelementptr ptr, ptr %lows, i64 %k
  %length.at = getelementptr i64, ptr %lengths, i64 %k
  %low = load ptr, ptr %low.at
  %length = load i64, ptr %length.at
  %refused = call i32 %madvise(ptr %low, i64 %length, i32 %advice)
  %there = icmp eq i32 %refused, 0
  br i1 %there, label %compare, label %record
compare:
  %address.at = getelementptr ptr, ptr %addresses, i64 %k
  %size.at = getelementptr i64, ptr %sizes, i64 %k
  %name.at = getelementptr i64, ptr %named, i64 %k
  %address = load ptr, ptr %address.at
  %size = load i64, ptr %size.at
  %name = load i64, ptr %name.at
  %crc = call i32 %crc32c(i32 0, ptr %address, i64 %size)
  %stored.at = getelementptr i8, ptr %address, i64 %size
  %stored = load i32, ptr %stored.at, align 1
  %stored.wide = zext i32 %stored to i64
  %as.stored = icmp eq i32 %crc, %stored
  %as.named = icmp eq i64 %name, %stored.wide
  %unnamed = icmp slt i64 %name, 0
  %of.place = or i1 %as.named, %unnamed
  %right = and i1 %as.stored, %of.place
  br label %record
record:
  %result = phi i1 [ false, %bring ], [ %right, %compare ]
  %result.at = getelementptr i8, ptr %results, i64 %k
  %byte = zext i1 %result to i8
  store i8 %byte, ptr %result.at
  %k.after = add i64 %k, 1
  br label %next
end:
  ret void
}

; Runs the function of a table.
define void @process(ptr %table) {
  %key = load i32, ptr @key
  %function.at = getelementptr ptr, ptr %table, i64 5
  %function = load ptr, ptr %function.at
  call i32 @pthread_setspecific(i32 %key, ptr %table)
  call void %function(ptr %table)
  call i32 @pthread_setspecific(i32 %key, ptr null)
  ret void
}

; Handles SIGBUS. A page that is missing from its file (BUS_ADRERR, 2) while a table is processed is counted, and becomes
; zeros. A signal that a handler before this one has sent (0 or less) needs nothing: the instruction faults again. Every
; other signal is left to the previous action: the instruction faults again.
define void @on_bus_error(i32 %signal, ptr %info, ptr %context) {
begin:
  %key = load i32, ptr @key
  %table = call ptr @pthread_getspecific(i32 %key)
  %others = icmp eq ptr %table, null
  br i1 %others, label %leave, label %ours
ours:
  %code.at = getelementptr i32, ptr %info, i64 2
  %code = load i32, ptr %code.at
  %sent = icmp sle i32 %code, 0
  br i1 %sent, label %end, label %fault
fault:
  %missing = icmp eq i32 %code, 2
  br i1 %missing, label %replace, label %leave
replace:
  %address.at = getelementptr i64, ptr %info, i64 2
  %address = load i64, ptr %address.at
  %bytes = load i64, ptr @page
  %mask = sub i64 0, %bytes
  %begin.number = and i64 %address, %mask
  %begin.at = inttoptr i64 %begin.number to ptr
  %mapped = call ptr @mmap(ptr %begin.at, i64 %bytes, i32 1, i32 50, i32 -1, i64 0) ; read; private, fixed, anonymous
  %replaced = icmp eq ptr %mapped, %begin.at
  br i1 %replaced, label %count, label %leave
count:
  atomicrmw add ptr @lost, i64 1 seq_cst
  br label %end
leave:
  call i32 @sigaction(i32 %signal, ptr @previous, ptr null)
  br label %end
end:
  ret void
}

define void @submit(ptr %state) {
  %work = getelementptr %state, ptr %state, i32 0, i32 1
  %submitted.at = getelementptr %state, ptr %state, i32 0, i32 3
  call i32 @pthread_mutex_lock(ptr %state)
  %submitted = load i64, ptr %submitted.at
  %submitted.after = add i64 %submitted, 1
  store i64 %submitted.after, ptr %submitted.at
  call i32 @pthread_cond_signal(ptr %work)
  call i32 @pthread_mutex_unlock(ptr %state)
  ret void
}

define i64 @wait(ptr %state, i64 %number) {
begin:
  %result = getelementptr %state, ptr %state, i32 0, i32 2
  %done.at = getelementptr %state, ptr %state, i32 0, i32 4
  call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %done = load i64, ptr %done.at
  %enough = icmp sge i64 %done, %number
  br i1 %enough, label %end, label %sleep
sleep:
  call i32 @pthread_cond_wait(ptr %result, ptr %state)
  br label %look
end:
  call i32 @pthread_mutex_unlock(ptr %state)
  ret i64 %done
}

define ptr @serve(ptr %state) {
begin:
  %work = getelementptr %state, ptr %state, i32 0, i32 1
  %result = getelementptr %state, ptr %state, i32 0, i32 2
  %submitted.at = getelementptr %state, ptr %state, i32 0, i32 3
  %done.at = getelementptr %state, ptr %state, i32 0, i32 4
  %last.at = getelementptr %state, ptr %state, i32 0, i32 5
  call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %submitted = load i64, ptr %submitted.at
  %done = load i64, ptr %done.at
  %idle = icmp eq i64 %submitted, %done
  br i1 %idle, label %sleep, label %given
sleep:
  call i32 @pthread_cond_wait(ptr %work, ptr %state)
  br label %look
given:
  %last = load ptr, ptr %last.at
  %next.at = getelementptr ptr, ptr %last, i64 4
  %table = load ptr, ptr %next.at
  store ptr %table, ptr %last.at
  call i32 @pthread_mutex_unlock(ptr %state)
  %ends = icmp eq ptr %table, null
  br i1 %ends, label %end, label %work.off
work.off:
  call void @process(ptr %table)
  call i32 @pthread_mutex_lock(ptr %state)
  %done.after = add i64 %done, 1
  store i64 %done.after, ptr %done.at
  call i32 @pthread_cond_signal(ptr %result)
  br label %look
end:
  ret ptr null
}

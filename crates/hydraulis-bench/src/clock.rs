//! The clock for planning times.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread: the time on a quiet machine, however busy this one is.
fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    Duration::from_secs(seconds.unwrap_or_default()) + Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// The result of `work`, and its CPU time on this thread in ms.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = thread_cpu();
    let done = work();
    (done, thread_cpu().saturating_sub(start).as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_sleep_takes_none() {
        let sum = || (0..3_000_000_u64).fold(1, |x: u64, y| x.wrapping_mul(6_364_136_223_846_793_005) ^ y);
        let (result, worked_ms) = timed(sum);
        assert!(result != 0 && worked_ms > 0.0);
        let ((), slept_ms) = timed(|| std::thread::sleep(Duration::from_millis(60)));
        assert!(slept_ms < 30.0, "{slept_ms}");
    }
}

//! The usual `process_*` metrics. Those of the library, but for the CPU time, which it counts in
//! whole seconds: over a scrape's or `top`'s two seconds that is half a core at least.

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Opts};

const CPU: &str = "process_cpu_seconds_total";

/// Memory, threads, descriptors and CPU time of this process, as `/metrics` shows them.
pub(super) struct ProcessMetrics {
    others: ProcessCollector,
    /// Held from the look at the clock to the sum: two scrapes at a time would add the same time twice.
    cpu: Mutex<Counter>,
}

impl ProcessMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let opts = Opts::new(CPU, "Total user and system CPU time spent in seconds.");
        Ok(Self { others: ProcessCollector::for_self(), cpu: Mutex::new(Counter::with_opts(opts)?) })
    }
}

/// CPU time of this process so far, in seconds.
#[expect(clippy::cast_precision_loss, reason = "exact for centuries of microseconds")]
fn cpu_seconds() -> f64 {
    // Linux has this clock in every version that runs here.
    let Ok(time) = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID) else { return 0.0 };
    time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.others.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.others.collect();
        families.retain(|family| family.name() != CPU);
        let cpu = self.cpu.lock();
        // The counter rounds: what is less than nothing is nothing.
        cpu.inc_by((cpu_seconds() - cpu.get()).max(0.0));
        families.extend(cpu.collect());
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_finer_than_seconds_and_the_others_are_there() {
        let registry = prometheus::Registry::new();
        registry.register(Box::new(ProcessMetrics::new().unwrap())).unwrap();
        let families = registry.gather();
        let names: Vec<_> = families.iter().map(MetricFamily::name).collect();
        assert!(names.contains(&"process_open_fds") && names.contains(&"process_resident_memory_bytes"));
        let cpu: Vec<_> = families.iter().filter(|family| family.name() == CPU).collect();
        assert_eq!(cpu.len(), 1);
        let seconds = cpu[0].get_metric()[0].get_counter().get_value();
        assert!(seconds > 0.0 && seconds.fract() > 0.0, "{seconds}");
        let before = cpu_seconds();
        while cpu_seconds() <= before {}
        assert!(registry.gather().iter().any(|family| {
            family.name() == CPU && family.get_metric()[0].get_counter().get_value() > seconds
        }));
    }
}

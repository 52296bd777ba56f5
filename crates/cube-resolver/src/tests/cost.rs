//! What the cache costs.

use super::{HERE, settings};
use crate::clock::Clock;
use crate::scripted::{World, id};

/// `cargo test --release -p cube-resolver -- --ignored --nocapture cost`
#[tokio::test]
#[ignore = "measures"]
async fn the_cost_of_an_entry_and_of_a_lookup() {
    const ENTRIES: u32 = 200_000;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let world = World::with_clock(settings(), Clock::default()).await;
    let fields =
        [HERE, &[("8080", "49983"), ("49983", "40001"), ("TrafficAccessToken", "example-token")]].concat();
    let ids: Vec<_> = (0..ENTRIES).map(|n| id(&format!("{n:032x}"))).collect();
    let before = resident();
    for id in &ids {
        world.resolver.put_for_measuring(id, &fields);
    }
    let bytes = (resident() - before) / u64::from(ENTRIES);
    let time = |ids: &[cube_route::SandboxId], rounds: usize| {
        let begun = std::time::Instant::now();
        for id in (0..rounds).flat_map(|_| ids) {
            assert!(world.resolver.cached(id.as_str()).is_some());
        }
        begun.elapsed().as_nanos() / (ids.len() * rounds) as u128
    };
    let (all, busy) = (time(&ids, 1), time(&ids[..1000], 200));
    println!("{bytes} bytes an entry; a cached lookup: {busy} ns of 1000 sandboxes, {all} ns of {ENTRIES}");
}

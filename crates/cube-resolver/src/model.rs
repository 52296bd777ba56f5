//! Random lives of the cache against a model that knows the truth, and so what may be served.
//!
//! The model does not repeat the cache: it keeps what each id was when, and asks of every result
//! that it was true recently enough for what the store promised at the time, that a healthy store
//! was not asked in vain, and that generations and revocations tell what happened.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cube_metadata::MetadataStore;
use cube_route::SandboxId;
use proptest::prelude::*;

use crate::single_flight::LookupResult;
use crate::testbed::{Testbed, id, until};
use crate::{Generation, Lookup, RouteEntry, Settings};

const TTL: Duration = Duration::from_secs(500);
const UNTRACKED: Duration = Duration::from_secs(2);
const NEGATIVE: Duration = Duration::from_secs(1);
const STALE: Duration = Duration::from_secs(600);
const IDS: u8 = 3;
/// Sequences in a run.
const SEQUENCES: u32 = 10_000;

/// What a record may say: CreatedAt and SandboxIP (a sandbox), HostIP (a move), the token (no part of
/// the generation).
type Value = (u8, u8, u8);

#[derive(Debug, Clone)]
enum Step {
    Lookup(u8),
    Fresh(u8),
    Write(u8, Value),
    Rewrite(u8),
    Delete(u8),
    /// A write arrives while the id is read; then somebody else asks.
    Race(u8, Option<Value>),
    Wait(u32),
    Down,
    Up,
    LoseMessages,
    Fail(bool),
    Forget(u8),
    Advance(u8),
    /// Somebody streams from the entry last served, or no longer.
    Stream(u8, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sandbox = || 0..IDS;
    let value = || (0..2_u8, 0..2_u8, 0..2_u8);
    let step = prop_oneof![
        8 => sandbox().prop_map(Step::Lookup),
        1 => sandbox().prop_map(Step::Fresh),
        3 => (sandbox(), value()).prop_map(|(sandbox, value)| Step::Write(sandbox, value)),
        1 => sandbox().prop_map(Step::Rewrite),
        1 => sandbox().prop_map(Step::Delete),
        2 => (sandbox(), proptest::option::of(value())).prop_map(|(sandbox, value)| Step::Race(sandbox, value)),
        4 => prop_oneof![Just(10), Just(999), Just(1001), Just(2001), Just(400_000), Just(501_000), Just(1_101_000)]
            .prop_map(Step::Wait),
        1 => Just(Step::Down),
        1 => Just(Step::Up),
        1 => Just(Step::LoseMessages),
        2 => any::<bool>().prop_map(Step::Fail),
        1 => sandbox().prop_map(Step::Forget),
        1 => sandbox().prop_map(Step::Advance),
        2 => (sandbox(), any::<bool>()).prop_map(|(sandbox, on)| Step::Stream(sandbox, on)),
    ];
    proptest::collection::vec(step, 1..24)
}

/// What is true about one id, and what was.
#[derive(Default)]
struct Truth {
    /// Every value with the time since when; the last is now.
    history: Vec<(Instant, Option<Value>)>,
    /// The last successful read that nothing has put in doubt since: no request may wait for
    /// another one in its time.
    sound: Option<Instant>,
    /// Changed under a push, not read since: what was read before is never served again.
    invalidated: bool,
    /// How many reads the store had completed.
    completed: usize,
    served: Option<(Value, Generation)>,
    /// Every generation from this on is a new one.
    floor: Option<Generation>,
    streaming: Option<Arc<RouteEntry>>,
}

impl Truth {
    fn now(&self) -> Option<Value> {
        self.history.last().and_then(|(_, value)| *value)
    }

    /// Whether `value` was true at some time in the last `age`.
    fn true_within(&self, value: Option<Value>, now: Instant, age: Duration) -> bool {
        let ends = self.history.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        self.history.iter().zip(ends).any(|((_, was), end)| {
            *was == value && end.is_none_or(|end| now.saturating_duration_since(end) <= age)
        })
    }
}

struct Model {
    testbed: Testbed,
    truths: Vec<Truth>,
    failing: bool,
    /// Which generation belongs to which id and CreatedAt: none is used twice.
    generations: HashMap<Generation, (u8, Value)>,
    revoked: HashMap<SandboxId, Generation>,
}

fn name(sandbox: u8) -> SandboxId {
    id(["a", "b", "c"][usize::from(sandbox)])
}

fn value_of(entry: &RouteEntry) -> Value {
    let digit = |text: String| text.bytes().rev().find(u8::is_ascii_digit).unwrap() - b'0';
    (
        digit(format!("{:?}", entry.record.created_at)),
        digit(format!("{:?}", entry.record.host_ip)),
        digit(format!("{:?}", entry.record.mask_request_host.clone())),
    )
}

impl Model {
    async fn new() -> Self {
        let settings = Settings {
            ttl_min: TTL,
            ttl_max: TTL,
            untracked_ttl: UNTRACKED,
            negative_ttl: NEGATIVE,
            stale_if_error: STALE,
            capacity: 100,
        };
        let testbed = Testbed::new(settings).await;
        let now = testbed.resolver.clock.now();
        let truths = (0..IDS).map(|_| Truth { history: vec![(now, None)], ..Truth::default() }).collect();
        Self { testbed, truths, failing: false, generations: HashMap::new(), revoked: HashMap::new() }
    }

    fn truth(&mut self, sandbox: u8) -> &mut Truth {
        &mut self.truths[usize::from(sandbox)]
    }

    fn tracked(&self) -> bool {
        self.testbed.store.tracking().is_some()
    }

    fn now(&self) -> Instant {
        self.testbed.resolver.clock.now()
    }

    async fn change(&mut self, sandbox: u8, value: Option<Value>) {
        let (now, tracked) = (self.now(), self.tracked());
        let truth = self.truth(sandbox);
        truth.history.push((now, value));
        truth.sound = None;
        truth.invalidated |= tracked;
        let id = name(sandbox);
        let Some((life, host, mask)) = value else { return self.testbed.delete(&id).await };
        let fields = [
            ("CreatedAt", life.to_string()),
            ("SandboxIP", format!("192.168.0.{life}")),
            ("HostIP", format!("10.0.0.{host}")),
            ("MaskRequestHost", format!("h{mask}")),
        ];
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.testbed.write(&id, &fields).await;
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Lookup(sandbox) => self.lookup(sandbox).await,
            Step::Fresh(sandbox) => {
                let result = self.testbed.resolver.lookup_fresh(&name(sandbox)).await;
                assert_eq!(result.is_err(), self.failing, "a fresh lookup is what the store says");
                if let Ok(lookup) = result {
                    self.read(sandbox);
                    self.served(sandbox, &lookup, Duration::ZERO);
                }
            }
            Step::Write(sandbox, value) => self.change(sandbox, Some(value)).await,
            Step::Rewrite(sandbox) => {
                let value = self.truth(sandbox).now();
                self.change(sandbox, value).await;
            }
            Step::Delete(sandbox) => self.change(sandbox, None).await,
            Step::Race(sandbox, value) => self.race(sandbox, value).await,
            Step::Wait(milliseconds) => self.testbed.after(Duration::from_millis(milliseconds.into())),
            Step::Down => {
                self.testbed.channel_down().await;
                self.doubt();
            }
            Step::Up => {
                self.testbed.channel_up().await;
                self.doubt();
            }
            Step::LoseMessages => {
                self.testbed.lose_messages().await;
                self.doubt();
            }
            Step::Fail(failing) => {
                self.testbed.fail(failing);
                self.failing = failing;
            }
            Step::Forget(sandbox) => {
                self.testbed.resolver.forget(&name(sandbox));
                self.cut(sandbox);
            }
            Step::Advance(sandbox) => {
                self.testbed.resolver.advance(&name(sandbox));
                self.cut(sandbox);
            }
            Step::Stream(sandbox, on) => {
                let held = match self.testbed.resolver.cached(name(sandbox).as_str()) {
                    Some(Lookup::Found(entry)) if on => Some(entry),
                    _ => None,
                };
                self.truth(sandbox).streaming = held;
            }
        }
        self.settle().await;
    }

    /// Nothing that was read is sound any more.
    fn doubt(&mut self) {
        self.truths.iter_mut().for_each(|truth| truth.sound = None);
    }

    /// The generation is over.
    fn cut(&mut self, sandbox: u8) {
        let newest = self.generations.keys().max().copied();
        let truth = self.truth(sandbox);
        truth.floor = newest.or(truth.floor);
        truth.served = None;
        truth.sound = None;
        truth.invalidated = true;
    }

    /// `sandbox` has just been read.
    fn read(&mut self, sandbox: u8) {
        let (now, tracked) = (self.now(), self.tracked());
        let truth = self.truth(sandbox);
        truth.invalidated = false;
        truth.sound = tracked.then_some(now);
    }

    async fn lookup(&mut self, sandbox: u8) {
        let id = name(sandbox);
        let reads = self.testbed.store.reads_of(&id);
        let (now, failing, tracked) = (self.now(), self.failing, self.tracked());
        let result = self.testbed.resolver.lookup(&id).await;
        let asked = self.testbed.store.reads_of(&id) - reads;
        let truth = self.truth(sandbox);
        if truth.sound.is_some_and(|read| now < read + TTL) && !failing {
            assert_eq!(asked, 0, "a sound entry in its time needs no read");
        }
        let Ok(lookup) = result else {
            assert!(failing, "an error of a store that is well");
            let young = truth.sound.is_some_and(|read| now < read + TTL);
            assert!(!young || truth.now().is_none(), "a sound entry needs no store");
            return;
        };
        let allowed = match (&lookup, failing) {
            (Lookup::Unknown, true) => panic!("unknown, says a store that cannot answer"),
            (Lookup::Found(_), true) => {
                assert!(!truth.invalidated, "served although it was invalidated");
                TTL + STALE
            }
            (_, false) if tracked => Duration::ZERO,
            (Lookup::Found(_), false) => UNTRACKED,
            (Lookup::Unknown, false) => NEGATIVE,
        };
        if asked > 0 && !failing {
            self.read(sandbox);
        }
        self.served(sandbox, &lookup, allowed);
    }

    /// A request was served `lookup`, which must have been true in the last `allowed`;
    /// zero: must be true.
    fn served(&mut self, sandbox: u8, lookup: &Lookup, allowed: Duration) {
        let now = self.now();
        let value = match lookup {
            Lookup::Found(entry) => Some(value_of(entry)),
            Lookup::Unknown => None,
        };
        let truth = &self.truths[usize::from(sandbox)];
        if allowed.is_zero() {
            assert_eq!(value, truth.now(), "what is served must be true");
        } else {
            assert!(truth.true_within(value, now, allowed), "{value:?} is older than {allowed:?}");
        }
        match lookup {
            Lookup::Found(entry) => self.generation(sandbox, value_of(entry), entry.generation),
            Lookup::Unknown => self.truth(sandbox).served = None,
        }
    }

    fn generation(&mut self, sandbox: u8, value: Value, generation: Generation) {
        let (life, host, _) = value;
        let owner = (sandbox, (life, host, 0));
        let known = *self.generations.entry(generation).or_insert(owner);
        assert_eq!(known, owner, "{generation} is used twice");
        let truth = &mut self.truths[usize::from(sandbox)];
        assert!(truth.floor.is_none_or(|floor| generation > floor), "{generation} was over");
        if let Some(((old_life, old_host, _), old)) = truth.served {
            if (old_life, old_host) != (life, host) {
                assert!(generation > old, "a new life has a new number");
            }
            assert!(generation >= old, "generations only move on");
        }
        truth.served = Some((value, generation));
    }

    /// The id is read while it is written; whoever asks after the write must not get the old value.
    async fn race(&mut self, sandbox: u8, value: Option<Value>) {
        let id = name(sandbox);
        let before = self.truth(sandbox).now();
        self.testbed.store.held.send_replace(true);
        let spawn = |fresh: bool| {
            let (resolver, id) = (Arc::clone(&self.testbed.resolver), id.clone());
            tokio::spawn(async move {
                if fresh { resolver.lookup_fresh(&id).await } else { resolver.lookup(&id).await }
            })
        };
        let early = spawn(true);
        let testbed = &self.testbed;
        until(|| testbed.store.reads_now.load(std::sync::atomic::Ordering::SeqCst) > 0).await;
        self.change(sandbox, value).await;
        let (resolver, late) = (Arc::clone(&self.testbed.resolver), id.clone());
        let late = tokio::spawn(async move { resolver.lookup(&late).await });
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.testbed.store.held.send_replace(false);
        let (early, late) = (early.await.unwrap(), late.await.unwrap());
        // While nothing is pushed, the one who came late may have got the read under way, or what
        // was in the cache before it.
        if self.tracked() {
            self.raced_early(sandbox, [before, value], early);
            self.raced_late(sandbox, late);
        } else {
            self.raced_late(sandbox, late);
            self.raced_early(sandbox, [before, value], early);
        }
    }

    fn raced_early(&mut self, sandbox: u8, both: [Option<Value>; 2], result: LookupResult) {
        if let Ok(Lookup::Found(entry)) = result {
            assert!(both.contains(&Some(value_of(&entry))), "the read saw one of both");
            self.generation(sandbox, value_of(&entry), entry.generation);
        }
    }

    fn raced_late(&mut self, sandbox: u8, result: LookupResult) {
        let (failing, tracked) = (self.failing, self.tracked());
        let Ok(lookup) = result else { return assert!(failing) };
        let allowed = match (failing, tracked) {
            (true, _) => TTL + STALE,
            (false, true) => Duration::ZERO,
            (false, false) => UNTRACKED,
        };
        self.served(sandbox, &lookup, allowed);
        if !failing {
            self.read(sandbox);
        }
    }

    /// Lets background reads end, and checks what was revoked meanwhile.
    async fn settle(&mut self) {
        self.testbed.settled().await;
        self.hear_revocations();
        for sandbox in 0..IDS {
            let completed = self.testbed.store.completed_reads_of(&name(sandbox));
            let truth = self.truth(sandbox);
            // Read in the background, since somebody streams from it.
            truth.invalidated &= completed == truth.completed;
            truth.completed = completed;
        }
        if self.failing || !self.tracked() {
            return;
        }
        // Streams of a sandbox that is no longer the same were revoked.
        for sandbox in 0..IDS {
            let truth = &self.truths[usize::from(sandbox)];
            let Some(entry) = &truth.streaming else { continue };
            let (life, generation) = (value_of(entry).0, entry.generation);
            if truth.now().map(|value| value.0) == Some(life) {
                continue;
            }
            let told =
                |model: &Self| model.revoked.get(&name(sandbox)).is_some_and(|before| generation < *before);
            // A read that the store did not answer is tried again after a moment.
            for _ in 0..1000 {
                if told(self) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.hear_revocations();
            }
            assert!(told(self), "a stream was not told");
        }
    }

    fn hear_revocations(&mut self) {
        while let Ok(revocation) = self.testbed.revocations.try_recv() {
            self.revoked.insert(revocation.id, revocation.before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(SEQUENCES) })]

    #[test]
    fn nothing_is_served_that_may_not_be(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new().await;
            for step in steps {
                model.step(step).await;
            }
            let used: HashSet<_> = model.generations.keys().collect();
            assert_eq!(used.len(), model.generations.len());
        });
    }
}

//! Single flight: one read of a sandbox at a time, whoever asks.
//!
//! A read runs as its own task, so that a caller who leaves does not end it for the others. A
//! caller who may not use the read under way (the sandbox was changed since it began, or he asks
//! for a fresh one) waits for the next round of the same task: results arrive in the order in
//! which they were read, and however many ask, the store sees one read a sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use cube_metadata::{Snapshot, StoreError};
use cube_route::SandboxId;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::entry::Lookup;
use crate::life::Trust;
use crate::resolver::Resolver;

pub(crate) type Answer = Result<Lookup, StoreError>;
type Round = watch::Sender<Option<Answer>>;

/// A read under way or about to begin.
struct Flight {
    /// Those who wait for it.
    round: Round,
    /// The promise it is read under; none until it begins.
    begun: Option<Trust>,
    /// The sandbox changed since it began: its result is not served to those who come now.
    spoiled: bool,
    /// Those who wait for the read after it.
    next: Option<Round>,
}

/// Whose answer a caller can do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// From memory, if it came to be there meanwhile; else a read that is under way and sound.
    Any,
    /// A read that is under way and sound.
    Read,
    /// A read that has not begun yet.
    Fresh,
}

/// What [`Resolver::join`] gives.
pub(crate) enum Joined {
    /// It was in memory after all.
    Known(Lookup),
    /// It is being read.
    Waiting(watch::Receiver<Option<Answer>>),
}

/// All reads under way.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<SandboxId, Flight, ahash::RandomState>>);

impl Flights {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Runs `change` while no read can land, and spoils the one of `id` that is under way.
    pub(crate) fn spoil<T>(&self, id: &SandboxId, change: impl FnOnce() -> T) -> T {
        let mut flights = self.0.lock();
        if let Some(flight) = flights.get_mut(id) {
            flight.spoiled = flight.begun.is_some();
        }
        change()
    }
}

impl Resolver {
    /// Joins the read of `id` that is under way, or begins one.
    pub(crate) fn join(self: &Arc<Self>, id: &SandboxId, ask: Ask) -> Joined {
        let mut flights = self.flights.0.lock();
        if ask == Ask::Any
            && let Some(lookup) = self.settled(id)
        {
            return Joined::Known(lookup);
        }
        let Some(flight) = flights.get_mut(id) else {
            let (round, waiting) = watch::channel(None);
            flights.insert(id.clone(), Flight { round, begun: None, spoiled: false, next: None });
            tokio::spawn(Arc::clone(self).fly(id.clone()));
            return Joined::Waiting(waiting);
        };
        let joinable = match flight.begun {
            None => true,
            Some(trust) => ask != Ask::Fresh && !flight.spoiled && self.holds(trust),
        };
        let round =
            if joinable { &flight.round } else { flight.next.get_or_insert_with(|| Round::new(None)) };
        Joined::Waiting(round.subscribe())
    }

    /// Whether what is read under `trust` may be given to somebody who asks now. While nothing is
    /// pushed a read under way is as young as anything can be.
    fn holds(&self, trust: Trust) -> bool {
        let current = self.trust();
        current.session.is_none() || trust == current
    }

    /// Reads `id` until nobody waits for another round.
    async fn fly(self: Arc<Self>, id: SandboxId) {
        // A panic on the way (of a store, of an observer) must not leave a flight behind that
        // never lands: those who wait are told, the next caller begins anew.
        let mut guard = Abandon { resolver: &self, id: &id, landed: false };
        loop {
            let trust = self.trust();
            let read_at = self.clock.now();
            if let Some(flight) = self.flights.0.lock().get_mut(&id) {
                flight.begun = Some(trust);
                flight.spoiled = false;
            }
            let mark = self.observer.mark();
            let result = self.store.fetch(&id).await;
            if let Ok(snapshot) = &result {
                self.observer.observed_since(&id, snapshot, mark);
            }
            let interested = self.observer.interested(&id);
            if !self.land(&id, result, Reading { trust, read_at, interested }) {
                guard.landed = true;
                return;
            }
        }
    }

    /// Stores what was read and tells those who wait; whether another round is wanted.
    fn land(&self, id: &SandboxId, result: Result<Snapshot, StoreError>, reading: Reading) -> bool {
        let mut flights = self.flights.0.lock();
        let Some(mut flight) = flights.remove(id) else { return false };
        let good = result.is_ok();
        let answer = result.map(|snapshot| self.keep(id, snapshot.record, reading, flight.spoiled));
        // Somebody was waiting for this sandbox, or streams from it: what replaced the reading
        // must become known without anybody asking.
        if flight.next.is_none() && flight.spoiled && good && reading.interested {
            flight.next = Some(Round::new(None));
        }
        let again = flight.next.is_some();
        if let Some(next) = flight.next {
            flights.insert(id.clone(), Flight { round: next, begun: None, spoiled: false, next: None });
        }
        drop(flights);
        flight.round.send_replace(Some(answer));
        again
    }
}

/// Under which circumstances a read was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) trust: Trust,
    pub(crate) read_at: std::time::Instant,
    pub(crate) interested: bool,
}

struct Abandon<'a> {
    resolver: &'a Resolver,
    id: &'a SandboxId,
    landed: bool,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.resolver.flights.0.lock().remove(self.id);
        }
    }
}

/// Waits for an answer.
pub(crate) async fn answered(mut waiting: watch::Receiver<Option<Answer>>) -> Answer {
    match waiting.wait_for(Option::is_some).await {
        Ok(answer) => answer.clone().unwrap_or_else(|| Err(abandoned())),
        Err(_) => Err(abandoned()),
    }
}

fn abandoned() -> StoreError {
    StoreError::Unreachable("the read was given up".into())
}

//! A clock that tests can set; outside of tests it is `Instant::now`.

use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    #[cfg(test)]
    set: Option<parking_lot::Mutex<Instant>>,
}

impl Clock {
    /// A clock that stands until it is moved.
    #[cfg(test)]
    pub(crate) fn standing() -> Self {
        Self { set: Some(parking_lot::Mutex::new(Instant::now())) }
    }

    #[cfg(test)]
    pub(crate) fn advance(&self, by: std::time::Duration) {
        if let Some(set) = &self.set {
            *set.lock() += by;
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(set) = &self.set {
            return *set.lock();
        }
        Instant::now()
    }
}

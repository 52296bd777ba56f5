//! Which Redis keys a sandbox has, and which sandbox a key belongs to (metadata.md, lifecycle.md).

use cube_route::SandboxId;

use crate::StoreError;
use crate::redis::RedisSettings;
use crate::redis::command::Command;

const STATE: &str = "cube:v1:shared:sandbox:lifecycle:state:";
/// Hits under it are counted: such rows should be gone after a migration.
const LEGACY: &str = "bypass_host_proxy:";

pub(crate) struct Keys {
    records: Vec<String>,
    faulty_set: String,
    follow_state: bool,
}

/// What a changed key belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyOwner {
    /// It is a key of this sandbox's record.
    Record(SandboxId),
    /// It is the lifecycle state of this sandbox.
    State(SandboxId),
    FaultyNodes,
}

impl Keys {
    /// Checks the prefixes: Redis pushes a key under one prefix only, and a record must not be
    /// found under two.
    pub(crate) fn new(settings: &RedisSettings, follow_state: bool) -> Result<Self, StoreError> {
        let keys = Self {
            records: settings.key_prefixes.clone(),
            faulty_set: settings.faulty_set.clone(),
            follow_state,
        };
        let invalid = |message: String| Err(StoreError::Invalid(message));
        if keys.records.is_empty() || keys.records.len() > usize::from(u8::MAX) {
            return invalid("store.redis.key_prefixes: needs 1 to 255 prefixes".to_owned());
        }
        let tracked: Vec<&str> =
            keys.records.iter().map(String::as_str).chain([STATE, &keys.faulty_set]).collect();
        if tracked.contains(&"") {
            return invalid("store.redis: a key prefix or the faulty set's name is empty".to_owned());
        }
        for (at, prefix) in tracked.iter().enumerate() {
            if let Some((_, longer)) =
                tracked.iter().enumerate().find(|(other, text)| *other != at && text.starts_with(prefix))
            {
                return invalid(format!("store.redis.key_prefixes: {prefix:?} is a prefix of {longer:?}"));
            }
        }
        Ok(keys)
    }

    /// The record's keys, the winning one first.
    pub(crate) fn records<'a>(&'a self, id: &'a str) -> impl DoubleEndedIterator<Item = String> + 'a {
        self.records.iter().map(move |prefix| format!("{prefix}{id}"))
    }

    /// The key that a record is written under.
    pub(crate) fn first(&self, id: &SandboxId) -> String {
        self.records(id.as_str()).next().unwrap_or_default()
    }

    /// The key of the lifecycle state, where it is followed.
    pub(crate) fn state(&self, id: &str) -> Option<String> {
        self.follow_state.then(|| format!("{STATE}{id}"))
    }

    /// Whether `commands` have in them every kind of command that a lookup is made of.
    pub(crate) fn is_lookup(&self, commands: &[Command]) -> bool {
        let has = |verb: &str| commands.iter().any(|command| command.verb == verb);
        has("HGETALL") && (!self.follow_state || has("GET"))
    }

    pub(crate) fn faulty_set(&self) -> &str {
        &self.faulty_set
    }

    pub(crate) fn prefixes(&self) -> &[String] {
        &self.records
    }

    pub(crate) fn is_legacy(&self, prefix: usize) -> bool {
        self.records.get(prefix).is_some_and(|prefix| prefix == LEGACY)
    }

    /// The prefixes whose changes Redis is asked to push.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = &str> {
        let state = self.follow_state.then_some(STATE);
        self.records.iter().map(String::as_str).chain([self.faulty_set.as_str()]).chain(state)
    }

    /// Whose key this is; `None` for a key that is not the proxy's, or whose id is not a sandbox id.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<KeyOwner> {
        let key = str::from_utf8(key).ok()?;
        if key == self.faulty_set {
            return Some(KeyOwner::FaultyNodes);
        }
        if let Some(id) = key.strip_prefix(STATE) {
            return SandboxId::parse(id).ok().map(KeyOwner::State);
        }
        self.id(key).map(KeyOwner::Record)
    }

    /// The sandbox of a record's key.
    pub(crate) fn id(&self, key: &str) -> Option<SandboxId> {
        let id = self.records.iter().find_map(|prefix| key.strip_prefix(prefix.as_str()))?;
        SandboxId::parse(id).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(prefixes: &[&str]) -> Result<Keys, StoreError> {
        let key_prefixes = prefixes.iter().map(|text| (*text).to_owned()).collect();
        Keys::new(&RedisSettings { key_prefixes, ..RedisSettings::default() }, true)
    }

    #[test]
    fn keys_lead_back_to_their_owner() {
        let keys = Keys::new(&RedisSettings::default(), true).unwrap();
        let id = SandboxId::parse("ab").unwrap();
        let own: Vec<String> = keys.records("ab").chain(keys.state("ab")).collect();
        assert_eq!(
            own,
            [
                "cube:v1:shared:sandbox:proxy:ab",
                "sandbox:proxy:ab",
                "bypass_host_proxy:ab",
                "cube:v1:shared:sandbox:lifecycle:state:ab"
            ]
        );
        for key in keys.records("ab") {
            assert_eq!(keys.owner(key.as_bytes()), Some(KeyOwner::Record(id.clone())));
        }
        assert_eq!(keys.owner(keys.state("ab").unwrap().as_bytes()), Some(KeyOwner::State(id)));
        assert_eq!(keys.owner(b"faulty_backend_set"), Some(KeyOwner::FaultyNodes));
        for stranger in
            [&b"faulty_backend_set2"[..], b"sandbox:proxy:", b"sandbox:proxy:a.b", b"other:ab", b"\xff"]
        {
            assert_eq!(keys.owner(stranger), None, "{stranger:?}");
        }
    }

    #[test]
    fn no_prefix_may_be_the_beginning_of_another() {
        assert!(with(&["a:", "b:"]).is_ok());
        for bad in [
            &["a:", "a:b:"][..],
            &["a:", "a:"],
            &["ab:", "a"],
            &[""],
            &[],
            &["faulty"],
            &["faulty_backend_set:x"],
            &["cube:v1:"],
        ] {
            assert!(matches!(with(bad), Err(StoreError::Invalid(_))), "{bad:?}");
        }
    }
}

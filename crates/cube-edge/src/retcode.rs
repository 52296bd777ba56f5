//! Return codes: the six digits in `X-Cube-Retcode`, the access log and the metrics (errors.md).

use std::fmt;

use http::HeaderValue;

/// Declares [`Retcode`] with the proxy's own codes, so that name, number and documentation stay together.
macro_rules! retcodes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal,)*) => {
        /// What became of a request, in the words of the old gateway's monitoring.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Retcode {
            /// `310200` or `330<status>`: the upstream responded with this status.
            Passed(u16),
            $($(#[$doc])* $variant,)*
        }

        /// The proxy's own codes, in the order of [`Retcode::index`].
        const OWN: &[(Retcode, u32, &str)] = &[$((Retcode::$variant, $number, stringify!($number))),*];
    };
}

retcodes! {
    /// A browser that navigates is sent to another place.
    Redirected = 310302,
    /// A browser that opens a preview link is sent to the same without its ticket.
    PreviewRedirected = 310303,
    /// The request names no sandbox, or is malformed.
    BadRequest = 310400,
    /// Traffic token missing or wrong.
    Forbidden = 310403,
    /// A control route of envd.
    EnvdControl = 310404,
    /// A method that is never forwarded.
    MethodNotAllowed = 310405,
    /// The client did not send its head or body in time.
    RequestTimeout = 310408,
    /// The sandbox is being or was killed.
    Gone = 310410,
    /// The body is over its limit.
    BodyTooLarge = 310413,
    /// The target is over its limit.
    TargetTooLong = 310414,
    /// Too many requests, or no quota for a resume.
    TooMany = 310429,
    /// The headers are over their limit.
    HeadTooLarge = 310431,
    /// The client left before the response began. Never on the wire.
    ClientClosed = 310499,
    /// The store cannot answer and nothing is cached.
    StoreUnavailable = 310500,
    /// A fault of the proxy itself.
    Internal = 310501,
    /// Pausing, or paused and not resumed.
    Asleep = 310503,
    /// No record, or a field of it that the request needs is missing.
    NoRoute = 310507,
    /// The record's address is malformed or may not be dialled.
    BadAddress = 310508,
    /// The backend cannot be reached or does not respond.
    Unreachable = 310509,
    /// The node is in the faulty set, or its breaker is open.
    FaultyNode = 340500,
}

/// The statuses that have a label of their own: the registered ones. Sorted.
const LISTED: [(u16, &str); 59] = [
    (101, "330101"),
    (200, "310200"),
    (201, "330201"),
    (202, "330202"),
    (203, "330203"),
    (204, "330204"),
    (205, "330205"),
    (206, "330206"),
    (207, "330207"),
    (208, "330208"),
    (226, "330226"),
    (300, "330300"),
    (301, "330301"),
    (302, "330302"),
    (303, "330303"),
    (304, "330304"),
    (305, "330305"),
    (307, "330307"),
    (308, "330308"),
    (400, "330400"),
    (401, "330401"),
    (402, "330402"),
    (403, "330403"),
    (404, "330404"),
    (405, "330405"),
    (406, "330406"),
    (407, "330407"),
    (408, "330408"),
    (409, "330409"),
    (410, "330410"),
    (411, "330411"),
    (412, "330412"),
    (413, "330413"),
    (414, "330414"),
    (415, "330415"),
    (416, "330416"),
    (417, "330417"),
    (418, "330418"),
    (421, "330421"),
    (422, "330422"),
    (423, "330423"),
    (424, "330424"),
    (425, "330425"),
    (426, "330426"),
    (428, "330428"),
    (429, "330429"),
    (431, "330431"),
    (451, "330451"),
    (500, "330500"),
    (501, "330501"),
    (502, "330502"),
    (503, "330503"),
    (504, "330504"),
    (505, "330505"),
    (506, "330506"),
    (507, "330507"),
    (508, "330508"),
    (510, "330510"),
    (511, "330511"),
];

/// The label of every status that is not listed.
const UNLISTED: &str = "330xxx";

impl Retcode {
    /// How many labels there are: the values of [`Retcode::index`].
    pub const LABELS: usize = OWN.len() + LISTED.len() + 1;

    /// The number.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Retcode::Passed(200) => 310_200,
            Retcode::Passed(status) => 330_000 + u32::from(status),
            own => OWN.iter().find(|row| row.0 == own).map_or(310_501, |row| row.1),
        }
    }

    /// The value of `X-Cube-Retcode`; allocates only for a status that is not listed.
    #[must_use]
    pub fn wire(self) -> HeaderValue {
        match self.label() {
            UNLISTED => HeaderValue::from(self.code()),
            label => HeaderValue::from_static(label),
        }
    }

    /// The value of the metric label: the number, or `330xxx` for a status that is not listed.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Retcode::Passed(status) => listed(status).map_or(UNLISTED, |at| at.1),
            own => OWN.iter().find(|row| row.0 == own).map_or("310501", |row| row.2),
        }
    }

    /// A number below [`Retcode::LABELS`], one for each label, for tables of metric handles.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Retcode::Passed(status) => OWN.len() + listed(status).map_or(LISTED.len(), |at| at.0),
            own => OWN.iter().position(|row| row.0 == own).unwrap_or(0),
        }
    }
}

/// Place and label of a status in [`LISTED`].
fn listed(status: u16) -> Option<(usize, &'static str)> {
    let at = LISTED.binary_search_by_key(&status, |row| row.0).ok()?;
    LISTED.get(at).map(|row| (at, row.1))
}

impl fmt::Display for Retcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_of_the_upstream_carries_its_status() {
        for (status, code) in [(200, 310_200), (201, 330_201), (404, 330_404), (500, 330_500), (799, 330_799)]
        {
            assert_eq!(Retcode::Passed(status).code(), code);
            assert_eq!(Retcode::Passed(status).wire(), code.to_string());
        }
    }

    #[test]
    fn labels_are_the_numbers_and_bounded() {
        assert!(LISTED.is_sorted());
        for &(code, number, label) in OWN {
            assert_eq!((code.code(), code.label()), (number, label));
            assert_eq!(label, number.to_string());
            assert_eq!(code.wire(), label);
        }
        for (status, label) in LISTED {
            assert_eq!(label, Retcode::Passed(status).code().to_string());
        }
        for status in [99, 299, 419, 599, 999, u16::MAX] {
            assert_eq!(Retcode::Passed(status).label(), "330xxx");
        }
    }

    #[test]
    fn each_label_has_its_own_index() {
        let mut seen = vec![None; Retcode::LABELS];
        let own = OWN.iter().map(|row| row.0);
        for code in own.chain((0..1000).map(Retcode::Passed)) {
            let slot = &mut seen[code.index()];
            assert_eq!(*slot.get_or_insert(code.label()), code.label());
        }
        assert!(seen.iter().all(Option::is_some));
    }
}

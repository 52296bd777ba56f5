//! New settings for a proxy that runs (operations.md, Configuration).

use std::sync::Arc;

use cube_settings::Secret;

use crate::access_log;
use crate::error::EdgeError;
use crate::gateway::Gateway;
use crate::settings::Settings;

/// Everything that can change while requests are served.
pub struct Reconfiguration {
    /// The settings of the request path.
    pub settings: Settings,
    /// `cache`.
    pub resolver: cube_resolver::Settings,
    /// `lifecycle` and `resume`.
    pub lifecycle: cube_lifecycle::Settings,
    /// `breaker`.
    pub breaker: cube_breaker::Settings,
    /// `access_log`: all but its path.
    pub access_log: Option<access_log::Settings>,
    /// `admin.token`; `None`: loopback peers only.
    pub admin_token: Option<Secret>,
}

impl Gateway {
    /// Puts other settings in force. A request keeps those it began with, an open connection its
    /// limits. To be called within the runtime that serves.
    ///
    /// # Errors
    /// [`EdgeError`] when the settings do not hold; nothing is changed then.
    pub fn update(&self, new: Reconfiguration) -> Result<(), EdgeError> {
        let state = self.state();
        let mut settings = new.settings;
        // The only step that can fail comes first.
        state.lifecycle.update(new.lifecycle)?;
        let guard = state.settings.load().guard.clone();
        if guard.same_rules(&settings.guard) {
            settings.guard = guard;
        } else {
            tokio::spawn(settings.guard.clone().run());
        }
        state.resolver.update(new.resolver);
        state.breaker.update(new.breaker);
        state.control_plane.update(settings.control_plane.clone());
        state.admin_token.store(new.admin_token.map(Arc::new));
        if let (Some(log), Some(settings)) = (&state.access_log, &new.access_log) {
            log.update(settings);
        }
        self.driver().update(settings.connections());
        state.settings.store(Arc::new(settings));
        Ok(())
    }
}

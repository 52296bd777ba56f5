//! The two ways in which a process ends (connections.md, Draining).

use std::time::Duration;

use cube_edge::{Drain, Gateway, Stage};

use super::reload::Reload;
use super::signals::Signals;
use crate::hot_restart::{DrainEnd, Incumbent};

/// How long, after everything is over, processes of before an upgrade may take to end.
const DRAINERS_END: Duration = Duration::from_secs(2);
/// How long a process that is to end at once waits for the responses to requests of its admin API. The
/// main process kills it 2 s after it has told it, and its last report takes up to one of them.
const LAST_RESPONSES: Duration = Duration::from_millis(300);

/// After SIGTERM. A second signal ends it at once. Processes that this one took over from end
/// within the same time, and this one after them.
pub(super) async fn drain(
    gateway: &Gateway,
    signals: &mut Signals,
    reload: &Reload,
    incumbent: Option<&Incumbent>,
) {
    let config = reload.running();
    let stages = gateway.drain();
    tracing::info!(open = gateway.driver().open(), "draining");
    let all_ended = async {
        gateway.finish().await;
        if let Some(incumbent) = incumbent {
            incumbent.unlinked().await;
        }
    };
    let times = async {
        stages.advance(Stage::Unready);
        tokio::time::sleep(config.drain.delay).await;
        stages.advance(Stage::Closing);
        stages.advance(Stage::Emptying);
        run_out(stages, config.drain.stop_timeout, "drain.stop_timeout", gateway).await;
    };
    let again = async {
        signals.until_stop(gateway, reload).await;
        tracing::warn!(open = gateway.driver().open(), "asked twice; ending at once");
        if let Some(incumbent) = incumbent {
            incumbent.stop_now();
        }
        stages.advance(Stage::Over);
    };
    let over = async {
        tokio::select! {
            () = times => {}
            () = again => {}
        }
        tokio::time::sleep(DRAINERS_END).await;
    };
    // Nothing has ended before listening has.
    let ended = async {
        stages.reached(Stage::Closing).await;
        all_ended.await;
    };
    tokio::select! {
        () = ended => {}
        () = over => {}
    }
}

/// After a successor has taken over. Nothing changes for who is connected but that no further
/// connection comes to this process. `stopped`: the service is being stopped already.
pub(super) async fn drain_after_upgrade(
    gateway: &Gateway,
    signals: &mut Signals,
    reload: &Reload,
    incumbent: &Incumbent,
    stopped: bool,
) {
    // Made before the phase that led here.
    let Some(drainer) = incumbent.take_drainer() else { return };
    let config = reload.running();
    let stages = gateway.drain();
    let stop = drainer.stop();
    if stopped {
        stop.send_replace(DrainEnd::Asked);
    }
    tracing::info!(open = gateway.driver().open(), "a successor serves; draining");
    gateway.ends_within(config.drain.timeout);
    let times = async {
        let idle = config.limits.keepalive_idle.min(config.drain.timeout);
        let late = async {
            tokio::time::sleep(idle).await;
            stages.advance(Stage::Emptying);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = late => {}
            () = run_out(stages, config.drain.timeout, "drain.timeout", gateway) => {}
        }
    };
    let told = async {
        // The sender is in `stop`, which lives here.
        let _ = stop.subscribe().wait_for(|stop| *stop >= DrainEnd::Asked).await;
        gateway.ends_within(config.drain.delay.saturating_add(config.drain.stop_timeout));
        tokio::time::sleep(config.drain.delay).await;
        stages.advance(Stage::Emptying);
        run_out(stages, config.drain.stop_timeout, "drain.stop_timeout", gateway).await;
    };
    let told_now = async {
        let _ = stop.subscribe().wait_for(|stop| *stop == DrainEnd::Now).await;
        stages.advance(Stage::Over);
    };
    let signalled = async {
        for to in [DrainEnd::Asked, DrainEnd::Now] {
            signals.until_stop(gateway, reload).await;
            tracing::info!(open = gateway.driver().open(), "this draining process was asked to stop");
            stop.send_modify(|stop| *stop = to.max(*stop));
        }
        std::future::pending::<()>().await;
    };
    let over = async {
        // Whichever is first; signals are taken for as long as the process lives.
        tokio::join!(times, told, told_now, signalled);
    };
    let ended = async {
        gateway.finish().await;
        let told_now = async {
            let _ = stop.subscribe().wait_for(|stop| *stop == DrainEnd::Now).await;
            tokio::time::sleep(LAST_RESPONSES).await;
        };
        // They go to the successor over the link that ends after this.
        tokio::select! {
            () = gateway.admin_forwarding().answered() => {}
            () = told_now => {}
        }
    };
    tokio::select! {
        () = ended => {}
        () = over => {}
    }
    // Its last lines are counted by then.
    gateway.close_logs();
    drainer.finish().await;
}

/// Lets the time of the streams that are left run out.
async fn run_out(stages: &Drain, time: Duration, option: &str, gateway: &Gateway) {
    let half = time / 2;
    tokio::time::sleep(half).await;
    stages.advance(Stage::Late);
    tokio::time::sleep(time.saturating_sub(half)).await;
    tracing::warn!(open = gateway.driver().open(), "{option} is over; ending what is left");
    stages.advance(Stage::Over);
}

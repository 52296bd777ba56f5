//! `cube-proxy top`: what the running proxy does now, for eyes in a terminal, line by line for a
//! file, as JSON for a machine (operations.md).

mod figures;
mod lines;
mod scrape;
mod screen;

use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;

use crate::config::{self, Config};
use crate::error::StartError;
use figures::Figures;
use scrape::Scrape;

use super::file::ConfigFile;
use super::{block_on, complain, say};
use crate::terminal;

/// Below it the figures would be mostly chance; the proxy forgets who looks after more.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// How to show it.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    file: ConfigFile,
    /// Time between two looks, which every figure is about: 100ms to 60s
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Show the figures of one interval as a table and end
    #[arg(long)]
    once: bool,
    /// One JSON object an interval, a line each
    #[arg(long)]
    pub(super) json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    config::duration(text)
        .filter(|time| INTERVALS.contains(time))
        .ok_or_else(|| "must be a time from 100ms to 60s, such as 500ms or 2s".to_owned())
}

/// What one interval came to, or why there is nothing to tell.
type Interval = Result<Box<Figures>, StartError>;

pub(super) fn run(options: &Options) -> Result<(), StartError> {
    let config = options.file.load_for(&["admin"])?;
    // What does not answer at all is said at once, on no screen of its own.
    let first = block_on(Scrape::take(&config))?;
    let (tell, told) = mpsc::sync_channel(1);
    let interval = options.interval;
    std::thread::spawn(move || watch(&config, first, interval, &tell));
    let screen = terminal::takes_escapes(&std::io::stdout()) && std::io::stdin().is_terminal();
    if screen && !options.json && !options.once {
        return screen::show(&told, interval);
    }
    write(options, &told)
}

/// Looks again and again, until nobody listens any more.
fn watch(config: &Config, first: Scrape, interval: Duration, tell: &mpsc::SyncSender<Interval>) {
    let mut before = first;
    let mut due = Instant::now();
    loop {
        due = (due + interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let told = match block_on(Scrape::take(config)) {
            Ok(now) => {
                let figures = Figures::between(&before, &now);
                before = now;
                Ok(Box::new(figures))
            }
            Err(error) => Err(error),
        };
        if tell.send(told).is_err() {
            return;
        }
    }
}

/// One line an interval, or one object, or with `--once` the one table.
fn write(options: &Options, told: &mpsc::Receiver<Interval>) -> Result<(), StartError> {
    let mut written = 0_u32;
    for told in told {
        let figures = match told {
            Ok(figures) => figures,
            Err(error) if options.once => return Err(error),
            Err(error) => {
                complain(&error);
                continue;
            }
        };
        if options.json {
            let json = serde_json::to_string(&figures)
                .map_err(|error| StartError::Assembly(format!("the figures are no JSON: {error}")))?;
            say(json)?;
        } else if options.once {
            for line in lines::table(&figures) {
                say(line)?;
            }
        } else {
            if written.is_multiple_of(lines::HEADER_EVERY) {
                say(lines::header())?;
            }
            say(lines::line(&figures))?;
            written += 1;
        }
        if options.once {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_written_as_in_the_configuration_and_bounded() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("60s"), Ok(Duration::from_secs(60)));
        for bad in ["50ms", "61s", "2", "soon", ""] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}

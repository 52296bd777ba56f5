//! The figures on a terminal of their own, drawn anew as they come.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};

use super::Interval;
use super::figures::Figures;
use super::lines::{blocks, rate, title};
use crate::error::StartError;

/// How soon a key or new figures show.
const TICK: Duration = Duration::from_millis(50);
/// Intervals that are remembered: as many as a wide terminal has columns.
const HISTORY: usize = 400;

/// What is on the screen.
#[derive(Default)]
struct View {
    figures: Option<Box<Figures>>,
    /// Requests a second, the newest first.
    history: VecDeque<u64>,
    /// Why there are no newer figures.
    trouble: Option<String>,
    interval: Duration,
}

/// Shows what is told until q, Esc or Ctrl-C.
pub(super) fn show(told: &Receiver<Interval>, interval: Duration) -> Result<(), StartError> {
    let failed = |source| StartError::File { path: "the terminal".into(), source };
    // Also puts the terminal back should anything panic.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = follow(&mut terminal, told, interval).map_err(failed);
    ratatui::try_restore().map_err(failed)?;
    outcome
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    told: &Receiver<Interval>,
    interval: Duration,
) -> std::io::Result<()> {
    let mut view = View { interval, ..View::default() };
    let mut changed = true;
    loop {
        if changed {
            terminal.draw(|frame| view.draw(frame))?;
        }
        changed = false;
        if event::poll(TICK)? {
            match event::read()? {
                Event::Key(key) if ends(key) => return Ok(()),
                _ => changed = true,
            }
        }
        match told.try_recv() {
            Ok(told) => {
                view.take(told);
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}

impl View {
    fn take(&mut self, told: Interval) {
        match told {
            Ok(figures) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "no less than 0"
                )]
                self.history.push_front(figures.requests.round().clamp(0.0, 9e15) as u64);
                self.history.truncate(HISTORY);
                self.figures = Some(figures);
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn draw(&self, frame: &mut Frame) {
        let [head, rest, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let keys = format!("q quits; every {:?}, rates a second", self.interval);
        frame.render_widget(Paragraph::new(Line::styled(keys, Style::new().fg(Color::DarkGray))), foot);
        let Some(figures) = &self.figures else {
            frame.render_widget(Paragraph::new("looking ..."), rest);
            return;
        };
        let blocks = blocks(figures);
        let wide = rest.width >= 130;
        let tall = blocks.iter().map(Vec::len).fold(0, if wide { usize::max } else { std::ops::Add::add });
        let tall = u16::try_from(tall).unwrap_or(u16::MAX);
        let [top, curve, bottom] =
            Layout::vertical([Constraint::Length(tall), Constraint::Length(4), Constraint::Min(3)])
                .areas(rest);
        let areas: [Rect; 2] = if wide {
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(top)
        } else {
            Layout::vertical(blocks.each_ref().map(|block| Constraint::Length(height(block)))).areas(top)
        };
        for (block, area) in blocks.iter().zip(areas) {
            frame.render_widget(Paragraph::new(block.iter().map(figure).collect::<Vec<_>>()), area);
        }
        let peak = self.history.iter().take(usize::from(curve.width)).max().copied().unwrap_or(0);
        let history: Vec<u64> = self.history.iter().copied().collect();
        let curve_widget = Sparkline::default()
            .block(
                Block::new().borders(Borders::TOP).title(format!("requests/s, now on the left, peak {peak}")),
            )
            .style(Style::new().fg(Color::Cyan))
            .data(&history);
        frame.render_widget(curve_widget, curve);
        let [left, right] =
            Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).spacing(2).areas(bottom);
        frame.render_widget(sandboxes(figures), left);
        frame.render_widget(responses(figures), right);
    }

    fn head(&self) -> Line<'static> {
        if let Some(trouble) = &self.trouble {
            return Line::styled(trouble.clone(), Style::new().fg(Color::White).bg(Color::Red));
        }
        match &self.figures {
            None => Line::raw("cube-proxy"),
            Some(figures) => {
                let color = if figures.ready { Color::Green } else { Color::Red };
                Line::styled(title(figures), Style::new().fg(color).add_modifier(Modifier::BOLD))
            }
        }
    }
}

fn height(block: &[(&'static str, String)]) -> u16 {
    u16::try_from(block.len()).unwrap_or(u16::MAX)
}

fn figure((name, value): &(&'static str, String)) -> Line<'static> {
    // What is written in capitals in a value wants to be seen.
    let alarming = value.contains("NOT PUSHED");
    let style = if alarming { Style::new().fg(Color::Red) } else { Style::new() };
    Line::from(vec![
        Span::styled(format!("{name:<13}"), Style::new().fg(Color::DarkGray)),
        Span::styled(value.clone(), style),
    ])
}

fn titles<const N: usize>(titles: [&'static str; N]) -> Row<'static> {
    Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD))
}

fn sandboxes(figures: &Figures) -> Table<'static> {
    let rows = figures.busiest.iter().map(|sandbox| {
        Row::new([
            Cell::from(sandbox.sandbox_id.clone()),
            Cell::from(Line::from(sandbox.requests.map_or_else(|| "-".to_owned(), rate)).right_aligned()),
            Cell::from(Line::from(sandbox.under_way.to_string()).right_aligned()),
            Cell::from(sandbox.state.clone().unwrap_or_else(|| "-".to_owned())),
        ])
    });
    let widths = [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(8), Constraint::Length(9)];
    Table::new(rows, widths)
        .header(titles(["sandbox", "   req/s", "inflight", "state"]))
        .block(Block::new().borders(Borders::TOP).title("busiest sandboxes"))
}

fn responses(figures: &Figures) -> Table<'static> {
    let rows = figures.responses.iter().map(|response| {
        let good = response.retcode == "310200" || response.reason == "ok";
        let style = if good { Style::new() } else { Style::new().fg(Color::Yellow) };
        Row::new([
            Cell::from(response.retcode.clone()),
            Cell::from(response.reason.clone()),
            Cell::from(Line::from(rate(response.requests)).right_aligned()),
        ])
        .style(style)
    });
    Table::new(rows, [Constraint::Length(7), Constraint::Fill(1), Constraint::Length(8)])
        .header(titles(["code", "reason", "   req/s"]))
        .block(Block::new().borders(Borders::TOP).title("answers"))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::tests::figures;
    use super::*;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_on_a_screen_of_usual_size() {
        let mut view = View { interval: Duration::from_secs(2), ..View::default() };
        assert!(drawn(&view, 80, 24).contains("looking"));
        view.take(Ok(Box::new(figures())));
        for (width, height) in [(80, 30), (160, 40)] {
            let screen = drawn(&view, width, height);
            for shown in
                ["cube-proxy 0.1.0", "100/s", "95.0% hits", "box-1", "340500", "10.0.0.7", "q quits", "held"]
            {
                assert!(screen.contains(shown), "no {shown} in\n{screen}");
            }
        }
    }

    #[test]
    fn no_size_is_too_small() {
        let mut view = View::default();
        view.take(Ok(Box::new(figures())));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 8), (500, 3)] {
            drawn(&view, width, height);
        }
    }

    #[test]
    fn trouble_is_shown_and_the_last_figures_stay() {
        let mut view = View::default();
        view.take(Ok(Box::new(figures())));
        view.take(Err(StartError::Assembly("gone away".to_owned())));
        let screen = drawn(&view, 80, 30);
        assert!(screen.contains("gone away") && screen.contains("box-1"), "{screen}");
    }
}

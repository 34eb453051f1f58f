//! Progress bars on standard error.
//!
//! Libraries report through [`Progress`]; [`Bars`] draws what they report.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use progress::{Progress, Unit};
use report::format;
use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two lines where standard error is no terminal.
const INTERVAL: Duration = Duration::from_secs(15);

/// The bar that is drawn now.
type Current = Arc<RwLock<Option<ProgressBar>>>;

/// One progress bar after another on a terminal; elsewhere a line every 15 seconds that says what runs and how much of it
/// is left.
///
/// It may be shared between threads: [`advance`](Self::advance) takes `&self`.
/// A bar that is dropped or followed by another without
/// [`finish`](Self::finish) disappears.
#[derive(Debug)]
pub struct Bars {
    target: Target,
    current: Current,
    /// Ends the thread that writes lines, when it is dropped.
    _lines: Option<Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Terminal,
    /// Bars are counted, not drawn.
    Hidden,
}

impl Bars {
    /// Bars where standard error is a terminal, otherwise lines, which begin with `program`.
    #[must_use]
    pub fn new(program: &'static str) -> Self {
        let current = Current::default();
        if std::io::stderr().is_terminal() {
            return Self { target: Target::Terminal, current, _lines: None };
        }
        let lines = write_lines(program, Arc::clone(&current));
        Self { target: Target::Hidden, current, _lines: Some(lines) }
    }

    /// Never draws, as for `--quiet`.
    #[must_use]
    pub fn hidden() -> Self {
        Self { target: Target::Hidden, current: Current::default(), _lines: None }
    }

    /// Returns whether bars are drawn.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        self.target == Target::Terminal
    }

    /// Begins a new bar; without a total it shows the count and the rate only.
    pub fn start(&self, what: &str, total: Option<u64>, unit: Unit) {
        let target = match self.target {
            Target::Terminal => ProgressDrawTarget::stderr(),
            Target::Hidden => ProgressDrawTarget::hidden(),
        };
        let bar = drawn_bar(what, total, unit, target);
        if self.is_visible() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(previous) = current.replace(bar) {
            previous.finish_and_clear();
        }
    }

    /// `n` more bytes, items or tokens are done.
    pub fn advance(&self, n: u64) {
        self.with_current(|bar| bar.inc(n));
    }

    /// Sets the text at the end of the line: the item that is being worked on.
    pub fn message(&self, text: &str) {
        self.with_current(|bar| bar.set_message(one_line(text)));
    }

    /// The work is done: the bar is removed from the screen.
    pub fn finish(&self) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = current.take() {
            bar.finish_and_clear();
        }
    }

    /// Runs `print` while the bar is off the screen, so that lines don't mix.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        match current.as_ref() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn with_current(&self, act: impl FnOnce(&ProgressBar)) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = current.as_ref() {
            act(bar);
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Starts a thread that writes a line on standard error every [`INTERVAL`], until the sender is dropped.
fn write_lines(program: &'static str, current: Current) -> Sender<()> {
    let (sender, stopped) = channel();
    let started = Instant::now();
    thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
            let line = {
                let bar = current.read().unwrap_or_else(PoisonError::into_inner);
                line(bar.as_ref(), started.elapsed())
            };
            // A log that can't be written is no reason to stop the work.
            let _ = writeln!(std::io::stderr(), "{program}: {line}");
        }
    });
    sender
}

/// The state of a bar in words: `perplexity: 25% (512 of 2,048), 45 s left`. Between two bars, the time since the start.
fn line(bar: Option<&ProgressBar>, since_start: Duration) -> String {
    let Some(bar) = bar else { return format!("running for {}", format::duration(since_start.as_secs_f64())) };
    let (name, done) = (bar.prefix(), bar.position());
    let Some(total) = bar.length().filter(|&total| total > 0) else {
        return format!("{name}: {} done", format::count(done));
    };
    let share = done as f64 / total as f64;
    let left = if done == 0 { Duration::ZERO } else { bar.elapsed().mul_f64((1.0 - share).max(0.0) / share) };
    let parts = [time_left(left), bar.message()];
    let more: String = parts.iter().filter(|part| !part.is_empty()).map(|part| format!(", {part}")).collect();
    format!("{name}: {} ({} of {}){more}", format::percent(share, 0), format::count(done), format::count(total))
}

fn drawn_bar(what: &str, total: Option<u64>, unit: Unit, target: ProgressDrawTarget) -> ProgressBar {
    ProgressBar::with_draw_target(total, target).with_style(style(total.is_some(), unit)).with_prefix(one_line(what))
}

fn one_line(text: &str) -> String {
    format::printable(text).replace('\n', " ")
}

fn style(has_total: bool, unit: Unit) -> ProgressStyle {
    let amount = match (has_total, unit) {
        (true, Unit::Bytes) => "{binary_bytes}/{binary_total_bytes}",
        (true, _) => "{human_pos}/{human_len}",
        (false, Unit::Bytes) => "{binary_bytes}",
        (false, _) => "{human_pos}",
    };
    let template = if has_total {
        format!("{{prefix}} [{{bar:24}}] {{percent:>3}}%  {amount}  {{rate}}  {{left}}  {{wide_msg}}")
    } else {
        format!("{{spinner}} {{prefix}}  {amount}  {{rate}}  {{elapsed_precise}}  {{wide_msg}}")
    };
    ProgressStyle::with_template(&template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
        .tick_chars("|/-\\ ")
        .with_key("rate", move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // The line is redrawn soon: a failed write has no consequence.
            let _ = out.write_str(&rate(state.per_sec(), unit));
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&time_left(state.eta()));
        })
}

fn rate(per_second: f64, unit: Unit) -> String {
    if !per_second.is_finite() || per_second <= 0.0 {
        return String::new();
    }
    match unit {
        Unit::Bytes => format!("{}/s", format::bytes(per_second as u64)),
        Unit::Items => format!("{}/s", format::significant(per_second, 3)),
        Unit::Tokens => format!("{} tokens/s", format::significant(per_second, 3)),
    }
}

fn time_left(left: Duration) -> String {
    // Beyond a day it is a guess from too few steps.
    match left.as_secs() {
        0 | 86_400.. => String::new(),
        seconds => format!("{} left", format::duration(seconds as f64)),
    }
}

impl Progress for Bars {
    fn start(&self, what: &str, total: Option<u64>, unit: Unit) {
        Bars::start(self, what, total, unit);
    }

    fn advance(&self, n: u64) {
        Bars::advance(self, n);
    }

    fn message(&self, text: &str) {
        Bars::message(self, text);
    }

    fn finish(&self) {
        Bars::finish(self);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    #[test]
    fn hidden_bars_take_every_call() {
        let bars = Bars::hidden();
        assert!(!bars.is_visible());
        bars.advance(1);
        bars.message("before the start");
        bars.start("convert", Some(10), Unit::Bytes);
        bars.start("score", None, Unit::Tokens);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| bars.advance(1)));
            }
        });
        let position = bars.current.read().ok().and_then(|bar| bar.as_ref().map(|b| b.position()));
        assert_eq!(position, Some(400));
        assert_eq!(bars.suspend(|| 7), 7);
        bars.finish();
        bars.finish();
    }

    /// A terminal that keeps what is written to it.
    #[derive(Debug, Default, Clone)]
    struct Paper(Arc<Mutex<String>>);

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn drawn(total: Option<u64>, unit: Unit) -> String {
        let paper = Paper::default();
        let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
        let bar = drawn_bar("convert\u{1b}", total, unit, target);
        bar.set_position(512 * 1024);
        bar.set_message("layer 3");
        bar.abandon();
        let text = paper.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }

    #[test]
    fn a_bar_shows_amount_and_message() {
        let bytes = drawn(Some(1024 * 1024), Unit::Bytes);
        for part in ["convert\u{fffd}", "[===", " 50%", "512.00 KiB/1.00 MiB", "layer 3"] {
            assert!(bytes.contains(part), "{part} in {bytes}");
        }
        let tokens = drawn(None, Unit::Tokens);
        assert!(tokens.contains("524,288") && !tokens.contains('%'), "{tokens}");
    }

    #[test]
    fn rate_and_time_left_are_words() {
        assert_eq!(rate(1024.0 * 1024.0 * 310.0, Unit::Bytes), "310 MiB/s");
        assert_eq!(rate(41.23, Unit::Tokens), "41.2 tokens/s");
        assert_eq!(rate(f64::NAN, Unit::Items), "");
        assert_eq!(time_left(Duration::from_secs(75)), "1 min 15 s left");
        assert_eq!(time_left(Duration::from_secs(u64::MAX)), "");
    }

    #[test]
    fn a_line_says_what_runs_and_what_is_left() {
        let bar = drawn_bar("perplexity", Some(2048), Unit::Tokens, ProgressDrawTarget::hidden())
            .with_elapsed(Duration::from_secs(30));
        bar.set_position(512);
        assert_eq!(line(Some(&bar), Duration::ZERO), "perplexity: 25% (512 of 2,048), 1 min 30 s left");
        bar.set_message("int8-row");
        assert!(line(Some(&bar), Duration::ZERO).ends_with(" left, int8-row"));
        assert_eq!(line(None, Duration::from_secs(75)), "running for 1 min 15 s");
        let open = drawn_bar("reading", None, Unit::Items, ProgressDrawTarget::hidden());
        assert_eq!(line(Some(&open), Duration::ZERO), "reading: 0 done");
    }
}

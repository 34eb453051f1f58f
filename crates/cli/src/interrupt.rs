//! Ctrl-C, SIGTERM and SIGHUP.

use std::io::Write;

/// From now on Ctrl-C (and on Unix SIGTERM and SIGHUP) removes unfinished output, prints one line
/// and ends the process with exit code 130. Destinations keep what they held.
pub fn tidy_when_interrupted(program: &'static str) {
    // Failing to install the handler changes only that a temporary may stay behind.
    let _ = ctrlc::set_handler(move || {
        let stay = store::output::remove_transients();
        let said = match stay.first() {
            Some(path) => format!("{} stays: the same command goes on with it", path.display()),
            None => "temporary files were removed".into(),
        };
        let _ = writeln!(std::io::stderr(), "\n{program}: interrupted; {}", report::format::printable(&said));
        #[allow(clippy::exit)] // The program ends here, on a thread of its own.
        std::process::exit(130);
    });
}

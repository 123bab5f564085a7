//! Logs: for people or for programs, to standard error.
//!
//! # Not here
//! The messages: constant phrases with their data in fields, logged where something happens.

use std::io::{self, IsTerminal};

use pointsman_config::log_filter::{FilterError, targets};
use pointsman_config::{LogConfig, LogFormat};
use pointsman_driver::finished::ACCESS;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, registry, reload};

/// A reason why logging cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The filter cannot be used.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The process logs already.
    #[error(transparent)]
    Begun(#[from] tracing::subscriber::SetGlobalDefaultError),
}

/// The filter of the log, which may be replaced while the process runs.
#[derive(Clone, Debug)]
pub struct LogFilter(reload::Handle<Targets, Registry>);

impl LogFilter {
    /// Filters lines as `config` says from now on.
    ///
    /// # Errors
    /// If the filter cannot be used; then the one before stays.
    pub fn set(&self, config: &LogConfig) -> Result<(), FilterError> {
        let targets = of_config(config)?;
        // Nobody logs any more where the subscriber is gone.
        drop(self.0.reload(targets));
        Ok(())
    }
}

/// The targets of a configuration.
fn of_config(config: &LogConfig) -> Result<Targets, FilterError> {
    let targets = targets(&config.filter)?;
    Ok(if config.access {
        targets
    } else {
        targets.with_target(ACCESS, LevelFilter::OFF)
    })
}

/// Begins to log, for as long as the process runs.
///
/// # Errors
/// If the filter cannot be used, or the process logs already.
pub fn begin(config: &LogConfig) -> Result<LogFilter, LoggingError> {
    let colours = if io::stderr().is_terminal() {
        Colours::Ansi
    } else {
        Colours::None
    };
    begin_with(config, colours, io::stderr)
}

/// Begins to log, for as long as the process runs, to what `writer` makes for each line; for tests.
///
/// # Errors
/// As [`begin`].
pub fn begin_in<W: io::Write>(
    config: &LogConfig,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Result<LogFilter, LoggingError> {
    begin_with(config, Colours::None, writer)
}

fn begin_with<W>(config: &LogConfig, colours: Colours, writer: W) -> Result<LogFilter, LoggingError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (subscriber, filter) = subscriber(config, colours, writer)?;
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(filter)
}

/// The colours of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colours {
    /// Colours of terminals, unless the variable `NO_COLOR` says otherwise.
    Ansi,
    None,
}

fn subscriber<W>(
    config: &LogConfig,
    colours: Colours,
    writer: W,
) -> Result<(Box<dyn Subscriber + Send + Sync>, LogFilter), FilterError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(of_config(config)?);
    let filtered = registry().with(filter);
    let lines = fmt::layer().with_writer(writer);
    let subscriber: Box<dyn Subscriber + Send + Sync> = match config.format {
        LogFormat::Human => {
            let lines = match colours {
                // A layer looks at `NO_COLOR` by itself.
                Colours::Ansi => lines,
                Colours::None => lines.with_ansi(false),
            };
            Box::new(filtered.with(lines))
        }
        LogFormat::Json => Box::new(filtered.with(lines.json().flatten_event(true))),
    };
    Ok((subscriber, LogFilter(handle)))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;
    use std::sync::{Arc, Mutex};

    use tracing::{debug, info, warn};

    use super::*;

    /// The lines that `say` logs to a file.
    fn logged(format: LogFormat, filter: &str, say: impl FnOnce()) -> String {
        logged_with(Colours::None, format, filter, say)
    }

    /// The lines that `say` logs.
    fn logged_with(
        colours: Colours,
        format: LogFormat,
        filter: &str,
        say: impl FnOnce(),
    ) -> String {
        let config = LogConfig {
            format,
            filter: filter.to_owned(),
            access: true,
        };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Sink(Arc::clone(&lines));
        let (subscriber, _) = subscriber(&config, colours, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, say);
        let bytes = lines.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[derive(Clone)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn for_people_a_line_has_level_words_and_fields() {
        let text = logged(LogFormat::Human, "info", || {
            info!(model = "demo", "serving")
        });
        assert!(text.contains(" INFO "), "{text}");
        assert!(text.ends_with("serving model=\"demo\"\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_terminal_has_colours_unless_no_color_is_set() {
        let text = logged_with(Colours::Ansi, LogFormat::Human, "info", || info!("serving"));
        let is_plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        assert_eq!(!text.contains('\u{1b}'), is_plain, "{text:?}");
        if is_plain {
            return;
        }
        // The environment of this process stays as it is: another one runs this test alone.
        let this = "logging::tests::a_terminal_has_colours_unless_no_color_is_set";
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--exact", this]).env("NO_COLOR", "1");
        let output = again.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}");
        assert!(said.contains("1 passed"), "{said}");
    }

    #[test]
    fn for_programs_a_line_is_an_object() {
        let text = logged(LogFormat::Json, "info", || info!(slots = 8, "serving"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "serving");
        assert_eq!(line["slots"], 8);
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn a_filter_decides_by_the_beginning_of_the_target() {
        let say = || {
            debug!(target: "pointsman_lifecycle", "one");
            warn!(target: "hyper", "two");
            info!(target: "hyper", "three");
        };
        let text = logged(LogFormat::Human, "warn, pointsman=debug", say);
        let said = ["one", "two", "three"].map(|word| text.contains(word));
        assert_eq!(said, [true, true, false], "{text}");
        assert_eq!(logged(LogFormat::Human, "off", say), "");
    }
}

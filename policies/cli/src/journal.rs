//! `pointsman replay` and `pointsman journal`: a journal replayed, shown, and exported.
//!
//! A command writes its output line by line, not as one text: a journal may be long.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use pointsman_component::PolicyEngine;
use pointsman_core::Round;
use pointsman_journal::{Entry, JournalReader, Keyframe, Located, ReadError, json_line, text_line};
use pointsman_notation::Time;
use pointsman_policy::PolicySource;
use pointsman_replay::{Difference, PassedOver, Replay, WhatIf};

use crate::settings::Given;
use crate::{Verdict, code};

/// Arguments of `pointsman replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArgs {
    /// The journal: its folder, or one of its files
    #[arg(value_name = "JOURNAL")]
    pub journal: PathBuf,
    /// Begin with the last keyframe at or before that round, instead of the first
    #[arg(long, value_name = "ROUND")]
    pub from: Option<u64>,
    /// Ask this policy too, and count what it would have decided otherwise
    #[arg(long, value_name = "FILE.wasm")]
    pub policy: Option<PathBuf>,
    /// The other policy's `[settings]` and `[limits]`, as in the file beside a policy in the policy
    /// folder
    #[arg(long, value_name = "FILE.toml", requires = "policy")]
    pub settings: Option<PathBuf>,
    /// Differences of the other policy to show
    #[arg(long, value_name = "N", default_value_t = 10, requires = "policy")]
    pub examples: usize,
}

/// A subcommand of `pointsman journal`.
#[derive(Clone, Debug, Subcommand)]
pub enum JournalCommand {
    /// Say what is in a journal: files, runs, policies, entries by kind, damage
    Show(ShowArgs),
    /// Write every entry as a line of JSON
    Export(ExportArgs),
}

/// Arguments of `pointsman journal show`.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArgs {
    /// The journal: its folder, or one of its files
    #[arg(value_name = "JOURNAL")]
    pub journal: PathBuf,
    /// Show every entry on a line, instead of the sums
    #[arg(long)]
    pub entries: bool,
}

/// Arguments of `pointsman journal export`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExportArgs {
    /// The journal: its folder, or one of its files
    #[arg(value_name = "JOURNAL")]
    pub journal: PathBuf,
}

/// Replays a journal. The verdict is good if no decision comes out otherwise, or another policy was
/// asked.
///
/// # Errors
/// If the journal cannot be read or replayed.
pub fn replay(args: &ReplayArgs, out: &mut dyn Write) -> Result<Verdict> {
    let engine = PolicyEngine::new()?;
    let mut replay = match &args.policy {
        None => Replay::new(code::kept().recorded(engine)),
        Some(path) => {
            let what_if = what_if(&engine, path, args)?;
            Replay::with_what_if(code::kept().recorded(engine), what_if)
        }
    };
    let mut reader = JournalReader::open(&args.journal)?;
    let mut begin = args.from.map(|round| beginning(&args.journal, round));
    let mut begin = begin.take().transpose()?;
    let mut difference = None;
    for located in reader.by_ref() {
        match located {
            Ok(located) if is_before(&mut begin, &located) => {}
            Ok(located) => difference = replay.take(located)?,
            Err(error) => {
                writeln!(out, "damaged: {error}")?;
                replay.damaged(&error);
            }
        }
        if difference.is_some() {
            break;
        }
    }
    if difference.is_none() {
        difference = replay.finish()?;
    }
    ensure!(
        replay.has_begun(),
        "{}: there is no keyframe in it, so there is nothing to begin with",
        args.journal.display()
    );
    for torn in reader.torn_tails() {
        writeln!(out, "cut off: {} at {}", torn.file.display(), torn.offset)?;
    }
    for note in replay.passed_over().notes() {
        writeln!(out, "{note}")?;
    }
    match difference {
        None => {
            report(&replay, out)?;
            Ok(Verdict::Good)
        }
        Some(difference) => {
            tell(&difference, out)?;
            Ok(Verdict::NotGood)
        }
    }
}

fn what_if(engine: &PolicyEngine, path: &Path, args: &ReplayArgs) -> Result<WhatIf> {
    let shown = path.display();
    let bytes = fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
    let component = code::kept()
        .load(engine, &bytes)
        .with_context(|| format!("{shown}"))?;
    let given = Given::read(args.settings.as_deref())?;
    let source = PolicySource::component(&component, &given.settings, given.limits);
    WhatIf::new(source, args.examples).with_context(|| format!("{shown} does not start"))
}

/// A keyframe's place in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Beginning {
    file: PathBuf,
    offset: u64,
}

/// The last keyframe at or before a round, of the runs that this version reads.
fn beginning(journal: &Path, round: u64) -> Result<Beginning> {
    let mut passed_over = PassedOver::default();
    let mut found = None;
    for located in JournalReader::open(journal)?.flatten() {
        if passed_over.hear(&located) {
            continue;
        }
        if let Entry::Keyframe(keyframe) = &located.entry
            && keyframe.round <= Round(round)
        {
            found = Some(Beginning {
                file: located.file.to_path_buf(),
                offset: located.offset,
            });
        }
    }
    found.with_context(|| {
        let journal = journal.display();
        format!("{journal}: no keyframe at or before round {round}; older files are gone")
    })
}

/// True if an entry comes before the beginning of a replay. Headers are always read.
fn is_before(begin: &mut Option<Beginning>, located: &Located) -> bool {
    let Some(at) = begin else {
        return false;
    };
    if *at.file == *located.file && at.offset == located.offset {
        *begin = None;
        return false;
    }
    !matches!(located.entry, Entry::Header(_))
}

fn tell(difference: &Difference, out: &mut dyn Write) -> io::Result<()> {
    let Difference {
        file,
        offset,
        now,
        round,
        what,
        recorded,
        replayed,
        context,
    } = difference;
    writeln!(out, "{what} differs")?;
    writeln!(out, "  in {} at {offset}", file.display())?;
    let at = Time::from_micros(now.0);
    writeln!(out, "  at {at}, after round {round}")?;
    writeln!(out, "recorded\n  {recorded}")?;
    writeln!(out, "replayed\n  {replayed}")?;
    writeln!(out, "before it")?;
    context
        .iter()
        .try_for_each(|line| writeln!(out, "  {line}"))
}

fn report(replay: &Replay, out: &mut dyn Write) -> io::Result<()> {
    let tally = replay.tally();
    writeln!(
        out,
        "replayed {} inputs, {} rounds, {} decisions",
        tally.inputs, tally.rounds, tally.decisions
    )?;
    writeln!(
        out,
        "the same: {} facts, {} machines at keyframes",
        tally.facts, tally.keyframes
    )?;
    if tally.restarts > 0 {
        writeln!(
            out,
            "began anew {} times after missing or damaged entries, {} entries passed over",
            tally.restarts, tally.skipped
        )?;
    }
    let Some(what_if) = replay.what_if() else {
        writeln!(
            out,
            "the same: {} answers ({} of them with their fuel), {} faults, {} states",
            tally.answers, tally.fuels, tally.faults, tally.snapshots
        )?;
        if tally.faults_taken > 0 {
            writeln!(out, "taken from the journal: {} faults", tally.faults_taken)?;
        }
        return Ok(());
    };
    let compared = what_if.tally();
    for (hook, it) in &compared.hooks {
        writeln!(
            out,
            "{} would have decided {} of {} otherwise at {}, and {} alike but for the fallbacks; {} \
             questions had no answer to compare with, at {} it faulted",
            what_if.name(),
            it.different,
            it.same + it.fallbacks + it.different,
            hook.as_str(),
            it.fallbacks,
            it.unanswered,
            it.faults
        )?;
    }
    if compared.hooks.is_empty() {
        writeln!(
            out,
            "{} was never asked: no hook of it is in the journal",
            what_if.name()
        )?;
    }
    let mut groups: Vec<_> = compared.groups.iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for ((hook, recorded, instead), count) in groups {
        let hook = hook.as_str();
        writeln!(out, "{count:>8}  {hook}: {recorded} -> {instead}")?;
    }
    for example in &compared.examples {
        writeln!(out, "e.g. {example}")?;
    }
    Ok(())
}

/// Shows or exports a journal. The verdict is not good if a part of the journal is damaged or
/// missing.
///
/// # Errors
/// If the journal cannot be read.
pub fn journal(command: &JournalCommand, out: &mut dyn Write) -> Result<Verdict> {
    match command {
        JournalCommand::Show(args) if args.entries => lines(&args.journal, out, |located| {
            Ok(format!(
                "{:>10}  {}",
                located.offset,
                text_line(&located.entry)
            ))
        }),
        JournalCommand::Show(args) => show(&args.journal, out),
        JournalCommand::Export(args) => {
            lines(&args.journal, out, |located| Ok(json_line(located)?))
        }
    }
}

fn lines(
    journal: &Path,
    out: &mut dyn Write,
    line: impl Fn(&Located) -> Result<String>,
) -> Result<Verdict> {
    let mut verdict = Verdict::Good;
    for located in JournalReader::open(journal)? {
        match located {
            Ok(located) => writeln!(out, "{}", line(&located)?)?,
            Err(error) => {
                tell_damage(&error);
                verdict = Verdict::NotGood;
            }
        }
    }
    Ok(verdict)
}

/// Writes damage to standard error, away from the reader of the lines.
#[expect(
    clippy::print_stderr,
    reason = "a command line tool speaks to its user"
)]
fn tell_damage(error: &ReadError) {
    eprintln!("pointsman: {error}");
}

/// Counts of the entries of a journal.
#[derive(Debug, Default)]
struct Sums {
    kinds: BTreeMap<&'static str, u64>,
    decisions: BTreeMap<(&'static str, String), u64>,
    names: BTreeMap<u32, String>,
    keyframes: Vec<(u64, u64)>,
    missing: u64,
}

fn show(journal: &Path, out: &mut dyn Write) -> Result<Verdict> {
    let mut sums = Sums::default();
    let mut verdict = Verdict::Good;
    let mut reader = JournalReader::open(journal)?;
    let mut files = 0_u64;
    for located in reader.by_ref() {
        match located {
            Ok(located) => {
                if let Entry::Header(header) = &located.entry {
                    files += 1;
                    writeln!(
                        out,
                        "{}: file {} of the run of {} ms since 1970, by Pointsman {}",
                        located.file.display(),
                        header.file,
                        header.started_unix_ms,
                        header.pointsman
                    )?;
                }
                sums.count(&located.entry);
            }
            Err(error) => {
                writeln!(out, "damaged: {error}")?;
                verdict = Verdict::NotGood;
            }
        }
    }
    for torn in reader.torn_tails() {
        let file = torn.file.display();
        writeln!(
            out,
            "cut off: {file} at {}, {} bytes after it",
            torn.offset, torn.bytes
        )?;
    }
    if files == 0 {
        bail!("{}: no journal in it", journal.display());
    }
    sums.tell(out)?;
    Ok(verdict)
}

impl Sums {
    fn count(&mut self, entry: &Entry<'_>) {
        let kind = match entry {
            Entry::Header(_) => "headers",
            Entry::Input { .. } => "inputs",
            Entry::Round { .. } => "rounds",
            Entry::Decision(decision) => {
                let author = match decision.answer.author {
                    pointsman_core::Author::BuiltIn => "built-in".to_owned(),
                    pointsman_core::Author::Policy(number) => {
                        let name = self.names.get(&number);
                        name.cloned().unwrap_or_else(|| format!("policy {number}"))
                    }
                };
                let key = (decision.hook.as_str(), author);
                *self.decisions.entry(key).or_default() += 1;
                "decisions"
            }
            Entry::Bound(bound) => {
                self.meet(&bound.roster);
                "changes of policies"
            }
            Entry::Fact(_) => "facts",
            Entry::PolicyEvent(_) => "events of policies",
            Entry::Keyframe(keyframe) => {
                let Keyframe { now, round, .. } = &**keyframe;
                self.keyframes.push((round.0, now.0));
                self.meet(&keyframe.roster);
                "keyframes"
            }
            Entry::Gap(gap) => {
                self.missing += gap.dropped;
                "gaps"
            }
            Entry::Briefed(_) => "briefings",
            Entry::Restarted(_) => "restarts of policies",
            Entry::Saved(_) => "states taken",
        };
        *self.kinds.entry(kind).or_default() += 1;
    }

    fn meet(&mut self, roster: &pointsman_journal::Roster) {
        let policies = roster.policies.iter();
        self.names
            .extend(policies.map(|it| (it.number, format!("{} {}", it.name, it.version))));
    }

    fn tell(&self, out: &mut dyn Write) -> io::Result<()> {
        for (kind, count) in &self.kinds {
            writeln!(out, "{count:>10}  {kind}")?;
        }
        for ((hook, author), count) in &self.decisions {
            writeln!(out, "{count:>10}  {hook} by {author}")?;
        }
        if self.missing > 0 {
            writeln!(out, "{:>10}  entries are missing", self.missing)?;
        }
        for (round, now) in &self.keyframes {
            let now = Time::from_micros(*now);
            writeln!(out, "keyframe after round {round}, at {now}")?;
        }
        Ok(())
    }
}

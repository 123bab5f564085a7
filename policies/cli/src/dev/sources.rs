//! The files that a policy is made and tested from, and the news of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::SystemTime;

use anyhow::{Context, Result};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};

use super::Args;
use crate::written::walk;

/// The state of a file or folder at a look.
#[derive(PartialEq)]
enum Stamp {
    /// A folder is there. Its own times are no news: a build writes into it.
    Folder,
    /// The length of a file, and the time of its last change.
    File(u64, Option<SystemTime>),
}

/// The state of each file and folder.
type Stamps = BTreeMap<PathBuf, Stamp>;

/// The sources of a policy.
pub(super) struct Sources {
    roots: Vec<PathBuf>,
    seen: Stamps,
    /// A message for each piece of news, at most one of which waits.
    pub(super) news: Receiver<()>,
    sender: SyncSender<()>,
    watcher: Option<RecommendedWatcher>,
}

// === impl Sources ===

impl Sources {
    /// Watches the files that the arguments name.
    pub(super) fn watch(args: &Args) -> Result<Self> {
        let named = [Some(&args.policy), args.settings.as_ref()];
        let roots = named.into_iter().flatten().chain(&args.scenarios);
        Self::of(roots.cloned().collect())
    }

    /// Watches these files, and all in these folders.
    fn of(roots: Vec<PathBuf>) -> Result<Self> {
        for root in &roots {
            anyhow::ensure!(root.exists(), "{} is not there", root.display());
        }
        let (sender, news) = mpsc::sync_channel(1);
        Ok(Self {
            roots,
            seen: Stamps::new(),
            news,
            sender,
            watcher: None,
        })
    }

    /// Takes all files as they are now, and hears of changes from now on, also in new folders.
    pub(super) fn look(&mut self) -> Result<()> {
        let sender = self.sender.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let is_access = event.is_ok_and(|event| event.kind.is_access());
            if !is_access {
                // One that waits already is enough.
                match sender.try_send(()) {
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
        })
        .context("no watch can be had on this machine")?;
        for folder in self.folders() {
            let watched = watcher.watch(&folder, RecursiveMode::NonRecursive);
            watched.with_context(|| format!("{} cannot be watched", folder.display()))?;
        }
        self.watcher = Some(watcher);
        self.seen = self.stamps();
        Ok(())
    }

    /// True if a file is another than at the last look, or a folder has come or gone: what is in one that came is not
    /// watched yet.
    pub(super) fn have_changed(&self) -> bool {
        self.stamps() != self.seen
    }

    /// The folders that have the files. A file that is replaced is news of its folder.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for root in &self.roots {
            if root.is_dir() {
                walk(
                    root,
                    &mut |folder| folders.push(folder.to_owned()),
                    &mut |_| {},
                );
            } else {
                let parent = root.parent().filter(|parent| *parent != Path::new(""));
                folders.push(parent.unwrap_or(Path::new(".")).to_owned());
            }
        }
        folders
    }

    fn stamps(&self) -> Stamps {
        let mut stamps = Stamps::new();
        let mut folders = Vec::new();
        for root in &self.roots {
            if root.is_dir() {
                walk(
                    root,
                    &mut |folder| folders.push(folder.to_owned()),
                    &mut |file| stamp(file, &mut stamps),
                );
            } else {
                stamp(root, &mut stamps);
            }
        }
        stamps.extend(folders.into_iter().map(|folder| (folder, Stamp::Folder)));
        stamps
    }
}

fn stamp(file: &Path, stamps: &mut Stamps) {
    if let Ok(facts) = fs::metadata(file) {
        let stamp = Stamp::File(facts.len(), facts.modified().ok());
        stamps.insert(file.to_owned(), stamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_new_is_a_change_and_what_a_build_writes_is_none() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        fs::write(root.join("policy.py"), "1").unwrap();
        let mut sources = Sources::of(vec![root.to_owned()]).unwrap();
        sources.look().unwrap();
        assert!(!sources.have_changed());
        for folder in ["more", "more/deeper"] {
            fs::create_dir(root.join(folder)).unwrap();
            assert!(sources.have_changed(), "{folder}");
            sources.look().unwrap();
            assert!(!sources.have_changed(), "{folder}");
        }
        fs::create_dir_all(root.join("build/guest")).unwrap();
        fs::write(root.join("mine.wasm"), "1").unwrap();
        assert!(!sources.have_changed());
        fs::write(root.join("more/deeper/mirror.py"), "1").unwrap();
        assert!(sources.have_changed());
        sources.look().unwrap();
        fs::remove_dir_all(root.join("more")).unwrap();
        assert!(sources.have_changed());
    }
}

//! The operating system's news of the policy folder.
//!
//! The news wakes the reconciler, which looks at the folder itself. Where no watch can be had, or
//! events get lost, its poll finds out a little later.

use std::path::{Path, PathBuf};
use std::task::Waker;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use pointsman_state::FolderId;
use tracing::warn;

use super::listing;

/// A watch on one folder, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    folder: PathBuf,
    /// The system's watcher; absent: there is none, and the poll finds changes.
    watcher: Option<RecommendedWatcher>,
    /// The folder that is watched. Another one may have come to its path.
    armed: Option<FolderId>,
}

impl FolderWatch {
    /// A watch on `folder` that wakes `waker`, once it is armed.
    pub(crate) fn new(folder: PathBuf, waker: Waker) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // That files are read is no news: the reconciler reads them.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                waker.wake_by_ref();
            }
        });
        Self {
            watcher: watcher.inspect_err(|error| unwatched(&folder, error)).ok(),
            folder,
            armed: None,
        }
    }

    /// Watches the folder that is at the path now. Call it before each look at the folder, so that
    /// no change after the look goes unnoticed.
    pub(crate) fn arm(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let there = listing::folder_id(&self.folder).ok();
        if there == self.armed {
            return;
        }
        if self.armed.is_some() {
            // The watch may have gone with the folder.
            drop(watcher.unwatch(&self.folder));
        }
        if there.is_some()
            && let Err(error) = watcher.watch(&self.folder, RecursiveMode::NonRecursive)
        {
            unwatched(&self.folder, &error);
        }
        self.armed = there;
    }
}

fn unwatched(folder: &Path, error: &notify::Error) {
    let path = folder.display();
    warn!(%path, %error, "policy folder polled only");
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::Receiver;

    use super::*;

    /// Waits for the operating system's next news.
    fn wait(woken: &Receiver<()>) {
        woken.recv().unwrap();
        while woken.try_recv().is_ok() {}
    }

    #[test]
    fn wakes_when_something_happens_even_in_a_folder_that_came_later() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("policies.d");
        let (waker, woken) = crate::waker();
        let mut watch = FolderWatch::new(folder.clone(), waker);
        if watch.watcher.is_none() {
            println!("no watch to be had on this machine");
            return;
        }
        watch.arm();
        assert_eq!(watch.armed, None);
        fs::create_dir(&folder).unwrap();
        watch.arm();
        fs::write(folder.join("a.wasm"), "a").unwrap();
        wait(&woken);
        // Another folder at the same path.
        fs::rename(&folder, home.path().join("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        let before = watch.armed.clone();
        watch.arm();
        assert_ne!(watch.armed, before);
        while woken.try_recv().is_ok() {}
        fs::write(folder.join("b.wasm"), "b").unwrap();
        wait(&woken);
    }
}

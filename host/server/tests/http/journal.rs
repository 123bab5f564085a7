//! The state of the journal, as operators see it.

use std::io::{self, ErrorKind, Write};

use pointsman_core::{Micros, Round};
use pointsman_journal::{
    Blob, Component, JournalSettings, JournalWriter, Keyframe, Roster, Store, StoredComponent,
    StoredFile,
};
use pointsman_server::journal::run_info;

use crate::stage::Stage;

/// A disk without room for a file.
struct FullDisk;

impl Store for FullDisk {
    fn files(&mut self) -> io::Result<Vec<StoredFile>> {
        Ok(Vec::new())
    }

    fn create(&mut self, _: u32) -> io::Result<Box<dyn Write + Send>> {
        Err(ErrorKind::StorageFull.into())
    }

    fn remove(&mut self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn components(&mut self) -> io::Result<Vec<StoredComponent>> {
        Ok(Vec::new())
    }

    fn keep_component(&mut self, _: &Component, _: u32) -> io::Result<u64> {
        Err(ErrorKind::StorageFull.into())
    }

    fn remove_component(&mut self, _: &StoredComponent) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn operators_see_that_the_journal_is_not_written_and_why() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    let answer = client.get("/admin/journal").await;
    assert_eq!(answer.head.status, 404, "{}", answer.body);
    let mut writer =
        JournalWriter::start(FullDisk, run_info(), JournalSettings::default()).unwrap();
    writer.write_keyframe(Keyframe {
        now: Micros(0),
        round: Round(0),
        machine: Blob::default(),
        roster: Roster::default(),
    });
    stage.metrics.journal(writer.monitor());
    // Waits for the thread that writes.
    drop(writer);
    let report = client.get("/admin/journal").await.json();
    assert_eq!(report["failing"], true, "{report}");
    assert_eq!(report["last_error"], "no storage space", "{report}");
    assert_eq!(report["outages"], 1);
    assert_eq!(report["entries"]["lost"], 1);
}

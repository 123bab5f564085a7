//! Hits and misses of the cache.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::component::PolicyComponent;
use crate::fixture::Guest;

fn made(cache: &CompileCache, engine: &PolicyEngine, bytes: &[u8]) -> Made {
    let (component, made) = PolicyComponent::load_cached(engine, bytes, cache).unwrap();
    assert_eq!(component.digest(), Digest::of(bytes));
    made
}

fn is_hit(made: &Made) -> bool {
    match made {
        Made::Cached => true,
        Made::Compiled => false,
        Made::Unkept(error) => panic!("{error}"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn entry(cache: &CompileCache) -> PathBuf {
    let [entry] = &cache.entries(SUFFIX).unwrap()[..] else {
        panic!("one entry is there");
    };
    entry.path.clone()
}

#[test]
fn what_was_compiled_is_found_by_another_engine() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("deep/code");
    let bytes = Guest::default().bytes();
    let cache = CompileCache::open(&folder).unwrap();
    assert!(!is_hit(&made(
        &cache,
        &PolicyEngine::new().unwrap(),
        &bytes
    )));
    assert_eq!((mode(&folder), mode(&entry(&cache))), (0o700, 0o600));
    let cache = CompileCache::open(&folder).unwrap();
    assert!(is_hit(&made(&cache, &PolicyEngine::new().unwrap(), &bytes)));
    let other = Guest {
        observe: "(nop)",
        ..Guest::default()
    };
    let other = made(&cache, &PolicyEngine::new().unwrap(), &other.bytes());
    assert!(!is_hit(&other));
}

/// Flips a bit in every 997th byte, and cuts the entry there.
#[test]
fn a_damaged_entry_is_a_miss_and_replaced() {
    let home = tempfile::tempdir().unwrap();
    let engine = PolicyEngine::new().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let bytes = Guest::default().bytes();
    assert!(!is_hit(&made(&cache, &engine, &bytes)));
    let path = entry(&cache);
    let whole = fs::read(&path).unwrap();
    let digest = Digest::of(&bytes);
    for at in (0..whole.len()).step_by(997) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, damaged).unwrap();
        assert!(cache.find(&engine, digest).is_none(), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(cache.find(&engine, digest).is_none(), "{at} bytes");
    }
    let longer = [whole.as_slice(), b"x"].concat();
    fs::write(&path, longer).unwrap();
    assert!(!is_hit(&made(&cache, &engine, &bytes)));
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert!(is_hit(&made(&cache, &engine, &bytes)));
}

/// Keeps an intact entry that is no code of this wasmtime: wasmtime itself must refuse it.
#[test]
fn an_entry_of_another_wasmtime_is_a_miss() {
    let home = tempfile::tempdir().unwrap();
    let engine = PolicyEngine::new().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let digest = Digest::of(b"");
    let code = b"\x7fELF";
    let mut entry = MAGIC.to_vec();
    entry.extend(Sha256::digest(code));
    entry.extend(code);
    fs::write(cache.path(&engine, digest), entry).unwrap();
    assert!(cache.find(&engine, digest).is_none());
}

#[test]
fn a_folder_of_others_is_made_private_or_not_used() {
    let home = tempfile::tempdir().unwrap();
    let engine = PolicyEngine::new().unwrap();
    let bytes = Guest::default().bytes();
    let cache = CompileCache::open(home.path()).unwrap();
    made(&cache, &engine, &bytes);
    fs::set_permissions(home.path(), Permissions::from_mode(0o770)).unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    assert_eq!(mode(home.path()), 0o700);
    assert!(
        cache.entries(SUFFIX).unwrap().is_empty(),
        "it may be anybody's"
    );
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(CompileCache::open(&file), Err(CacheError::Io(_))));
}

#[test]
fn the_oldest_entries_go_first() {
    let home = tempfile::tempdir().unwrap();
    let engine = PolicyEngine::new().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    for number in 0..ENTRIES_MAX {
        let path = home.path().join(format!("{number}{SUFFIX}"));
        let file = pointsman_files::create(&path).unwrap();
        let since = std::time::Duration::from_secs(u64::try_from(number).unwrap());
        file.set_modified(SystemTime::UNIX_EPOCH + since).unwrap();
    }
    made(&cache, &engine, &Guest::default().bytes());
    assert_eq!(cache.entries(SUFFIX).unwrap().len(), ENTRIES_MAX);
    assert!(!home.path().join(format!("0{SUFFIX}")).exists());
    assert!(home.path().join(format!("1{SUFFIX}")).exists());
}

#[test]
fn the_oldest_entries_go_where_all_together_are_too_large() {
    let of = |bytes: &[u64]| past(bytes.iter().copied());
    assert_eq!(of(&[]), 0);
    assert_eq!(of(&[1; ENTRIES_MAX]), 0);
    assert_eq!(of(&[1; ENTRIES_MAX + 3]), 3);
    assert_eq!(of(&[1, ENTRIES_BYTES_MAX - 2, 1, 1]), 1);
    assert_eq!(of(&[0, ENTRIES_BYTES_MAX - 2, 1, 1]), 0);
    assert_eq!(of(&[1, u64::MAX]), 1, "the newest one is in use");
}

#[test]
fn a_file_with_which_the_process_ended_again_and_again_is_given_up() {
    let home = tempfile::tempdir().unwrap();
    let note = home.path().join("a.tried");
    let attempts = Attempts::at(note.clone());
    for _ in 0..3 {
        assert_eq!(attempts.begin(), Ok(()));
    }
    let error = attempts.begin().unwrap_err();
    let why = "given up: the host or the compiler was ended 3 times while this file was compiled";
    let remedy = format!("to have it compiled once more, remove {}", note.display());
    assert_eq!(error.to_string(), format!("{why}; {remedy}"));
    fs::remove_file(&note).unwrap();
    for _ in 0..5 {
        assert_eq!(attempts.begin(), Ok(()));
        attempts.end(Some(&LoadError::NoHooks));
        assert!(!note.exists(), "that was an end like any other");
    }
}

#[test]
fn a_command_that_its_user_ends_gives_up_no_file() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let (engine, bytes) = (PolicyEngine::new().unwrap(), Guest::default().bytes());
    let kept = || PolicyComponent::load_kept(&engine, &bytes, &cache).map(|(_, made)| made);
    // As if it had been ended three times.
    let limits = format!("{:?}", engine.compiler().limits);
    let name = cache.name(&engine, Digest::of(&bytes), &limits) + NOTE_SUFFIX;
    for _ in 0..3 {
        Attempts::at(home.path().join(&name)).begin().unwrap();
    }
    let given_up = PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap_err();
    assert!(matches!(given_up, LoadError::GivenUp { .. }), "{given_up}");
    assert!(!is_hit(&kept().unwrap()));
    assert!(is_hit(&kept().unwrap()));
}

#[test]
fn files_with_the_same_code_are_compiled_once() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let (engine, bytes) = (PolicyEngine::new().unwrap(), Guest::default().bytes());
    // One more than may be begun before the file is given up.
    let together = Barrier::new(4);
    let load = || {
        together.wait();
        is_hit(&made(&cache, &engine, &bytes))
    };
    let hits: Vec<bool> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(load)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|hit| hit.unwrap()).collect()
    });
    let misses = hits.iter().filter(|is_hit| !**is_hit);
    assert_eq!(misses.count(), 1);
}

#[test]
fn nobody_waits_for_a_compilation_that_is_not_wanted_any_more() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let (engine, bytes) = (PolicyEngine::new().unwrap(), Guest::default().bytes());
    let turn = cache.turn(&engine, Digest::of(&bytes)).unwrap();
    let over = engine.until(Arc::new(AtomicBool::new(true)));
    let error = PolicyComponent::load_cached(&over, &bytes, &cache).unwrap_err();
    assert!(matches!(error, LoadError::NoCompiler(_)), "{error}");
    let notes = cache.entries(NOTE_SUFFIX).unwrap();
    assert!(notes.is_empty(), "it did not begin");
    // Other bytes have a turn of their own.
    let other = Guest {
        observe: "(nop)",
        ..Guest::default()
    };
    assert!(!is_hit(&made(&cache, &engine, &other.bytes())));
    drop(turn);
    assert!(!is_hit(&made(&cache, &engine, &bytes)));
}

#[test]
fn an_entry_of_others_is_a_miss() {
    let home = tempfile::tempdir().unwrap();
    let engine = PolicyEngine::new().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let bytes = Guest::default().bytes();
    assert!(!is_hit(&made(&cache, &engine, &bytes)));
    assert!(is_hit(&made(&cache, &engine, &bytes)));
    let entry = entry(&cache);
    fs::set_permissions(&entry, Permissions::from_mode(0o666)).unwrap();
    assert!(!is_hit(&made(&cache, &engine, &bytes)), "anybody's file");
    assert_eq!(mode(&entry), 0o600);
    fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
    assert!(!is_hit(&made(&cache, &engine, &bytes)), "anybody's folder");
    fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
    assert!(is_hit(&made(&cache, &engine, &bytes)));
    // A link in the place of the entry, and another folder in the place of the folder.
    let elsewhere = home.path().join("elsewhere");
    fs::rename(&entry, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &entry).unwrap();
    assert!(!is_hit(&made(&cache, &engine, &bytes)), "a link");
}

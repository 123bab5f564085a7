//! Packages over a program that answers as the binary does.

use std::collections::BTreeSet;
use std::process::Output;

use tempfile::TempDir;

use super::*;

/// A program that prints completions, writes a manual page, and would serve where no other policies are.
const PROGRAM_TEXT: &str = "#!/bin/sh\ncase $1 in\nman) echo .TH >\"$3/pointsman.1\" ;;\n\
                            completions) echo \"for $2\" ;;\n\
                            serve) test \"$2$(ls -A)\" = --check ;;\nesac\n# GLIBC_2.31\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Everything that is made over that program, and its folder; absent: this machine has no dpkg.
fn made() -> Option<(TempDir, Vec<PathBuf>)> {
    let (folder, files) = made_over(PROGRAM_TEXT)?;
    Some((folder, files.unwrap()))
}

/// Everything that is made over a program with this text.
fn made_over(text: &str) -> Option<(TempDir, Result<Vec<PathBuf>>)> {
    if process::find_program("dpkg-deb").is_none() {
        println!("skipped: there is no dpkg-deb here");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("program");
    fs::write(&binary, text).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(PROGRAM)).unwrap();
    let files = make(&release_of(&binary), &folder.path().join("dist"));
    Some((folder, files))
}

fn release_of(binary: &Path) -> Release<'_> {
    Release {
        root: root(),
        binary,
        version: "1.2.3",
        time: 1_700_000_000,
    }
}

fn said(program: &str, args: &[&str], file: &Path) -> String {
    let said = process::stdout_of(Command::new(program).args(args).arg(file));
    said.unwrap().unwrap()
}

/// The lines of a template that say something.
fn lines(name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("xtask/dist").join(name)).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_package_has_binary_unit_user_configuration_pages_completions_and_licence() {
    let Some((_folder, files)) = made() else {
        return;
    };
    let contents = said("dpkg-deb", &["--contents"], &files[0]);
    for (mode, path) in [
        ("-rwxr-xr-x", "usr/bin/pointsman"),
        ("-rw-r--r--", "usr/lib/systemd/system/pointsman.service"),
        ("-rw-r--r--", "usr/lib/sysusers.d/pointsman.conf"),
        ("-rw-r--r--", "etc/pointsman/pointsman.toml"),
        ("drwxr-xr-x", "etc/pointsman/policies.d/"),
        ("-rw-r--r--", "usr/share/man/man1/pointsman.1"),
        (
            "-rw-r--r--",
            "usr/share/bash-completion/completions/pointsman",
        ),
        ("-rw-r--r--", "usr/share/zsh/vendor-completions/_pointsman"),
        (
            "-rw-r--r--",
            "usr/share/fish/vendor_completions.d/pointsman.fish",
        ),
        ("-rw-r--r--", "usr/share/doc/pointsman/copyright"),
        ("-rw-r--r--", "usr/share/doc/pointsman/pointsman.toml"),
    ] {
        let mut all = contents.lines();
        let line = all.find(|line| line.ends_with(&format!(" ./{path}")));
        let line = line.unwrap_or_else(|| panic!("no {path} in\n{contents}"));
        assert!(line.starts_with(&format!("{mode} root/root ")), "{line}");
    }
    let info = said("dpkg-deb", &["--info"], &files[0]);
    for part in [
        "Package: pointsman",
        "Version: 1.2.3",
        "Depends: libc6 (>= 2.31), libgcc-s1, systemd",
        "postinst",
        "prerm",
        "postrm",
    ] {
        assert!(info.contains(part), "{part} not in\n{info}");
    }
    let field = |name| {
        let output = Command::new("dpkg-deb")
            .args(["--info"])
            .arg(&files[0])
            .arg(name)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(field("conffiles"), "/etc/pointsman/pointsman.toml\n");
}

#[test]
fn scripts_of_the_package_are_shell_that_can_be_read() {
    for script in ["postinst", "prerm", "postrm"] {
        let path = root().join("xtask/dist").join(script);
        assert!(
            process::succeeds(Command::new("sh").arg("-n").arg(&path)),
            "{script}"
        );
        assert_eq!(lines(script)[0], "set -e", "{script}");
    }
}

/// Writes a program of a shell's words into a folder.
fn write_program(folder: &Path, name: &str, words: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{words}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(PROGRAM)).unwrap();
}

/// Runs a script of the package as dpkg does, where `folder` has all programs, and is there as the folder of a systemd that runs.
fn run_script(folder: &Path, script: &str, args: &[&str]) -> Output {
    let text = fs::read_to_string(root().join("xtask/dist").join(script)).unwrap();
    let systemd = folder.to_str().unwrap();
    let text = text.replace("/run/systemd/system", systemd);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &text, script]).args(args);
    shell.env("PATH", folder).output().unwrap()
}

#[test]
fn a_service_that_systemd_cannot_start_or_stop_leaves_no_package_half_installed() {
    let folder = tempfile::tempdir().unwrap();
    write_program(folder.path(), "systemd-sysusers", "");
    let asked = "echo \"$*\" >> \"${0%/*}/asked\"; exit 1";
    write_program(folder.path(), "systemctl", asked);
    for (script, args, calls, told) in [
        (
            "postinst",
            &["configure", "1.2.2"][..],
            "daemon-reload\n--no-block try-restart pointsman.service\n",
            "pointsman is not restarted; systemctl status pointsman",
        ),
        (
            "prerm",
            &["remove"],
            "--no-reload disable --now pointsman.service\n",
            "pointsman is not stopped; systemctl status pointsman",
        ),
        ("postrm", &["remove"], "daemon-reload\n", ""),
    ] {
        let output = run_script(folder.path(), script, args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{script}: {said}");
        assert!(said.contains(told), "{script}: {said}");
        let asked = folder.path().join("asked");
        assert_eq!(fs::read_to_string(&asked).unwrap(), calls, "{script}");
        fs::remove_file(asked).unwrap();
    }
}

#[test]
fn files_have_the_time_of_the_commit_or_the_one_that_is_given() {
    let folder = tempfile::tempdir().unwrap();
    // A checkout of which git knows nothing.
    fs::write(folder.path().join(".git"), "gitdir: nowhere\n").unwrap();
    let time = |given: Option<&str>| time_of_files(folder.path(), given.map(OsStr::new));
    assert_eq!(time(Some("1700000000")).unwrap(), 1_700_000_000);
    for given in [None, Some(""), Some("soon")] {
        let error = time(given).unwrap_err().to_string();
        assert!(error.contains("SOURCE_DATE_EPOCH"), "{given:?}: {error}");
    }
}

#[test]
fn folders_are_open_to_readers_and_have_no_bits_of_the_one_that_they_are_in() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // As below a folder that gives its group to all that is made there.
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o3770)).unwrap();
    open_to_readers(&tree).unwrap();
    let mode = fs::metadata(&tree).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "{mode:o}");
}

#[test]
fn the_archive_is_unpacked_as_the_document_says_and_an_upgrade_keeps_what_is_the_operators() {
    let Some((folder, _)) = made() else {
        return;
    };
    let document = fs::read_to_string(root().join("host/server/README.md")).unwrap();
    let mut lines = document.lines().map(str::trim);
    let mut unpack = || lines.find(|line| line.starts_with("tar ")).unwrap();
    let (install, upgrade) = (unpack(), unpack());
    let system = folder.path().join("system");
    fs::create_dir_all(system.join("etc")).unwrap();
    let set = |path: &str, mode: u32| {
        fs::set_permissions(system.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    let mode = |path: &str| {
        let facts = fs::metadata(system.join(path)).unwrap();
        facts.permissions().mode() & 0o7777
    };
    let typed = |line: &str| {
        let line = line.replace(" -C / ", &format!(" -C '{}' ", system.display()));
        let mut shell = Command::new("sh");
        shell.current_dir(folder.path().join("dist"));
        process::run(shell.args(["-c", &line])).unwrap();
    };
    set("etc", 0o711);
    typed(install);
    for path in [
        "usr/bin/pointsman",
        "usr/share/zsh/site-functions/_pointsman",
        "etc/sysusers.d/pointsman.conf",
        "etc/systemd/system/pointsman.service",
        "etc/pointsman/policies.d",
    ] {
        assert!(system.join(path).exists(), "{path}");
    }
    set("etc/pointsman", 0o750);
    fs::write(system.join(CONFIGURATION), "mine").unwrap();
    fs::write(system.join("usr/bin/pointsman"), "old").unwrap();
    typed(upgrade);
    let text = |path: &str| fs::read_to_string(system.join(path)).unwrap();
    assert_eq!(text(CONFIGURATION), "mine");
    assert_eq!(text("usr/bin/pointsman"), PROGRAM_TEXT);
    assert_eq!(mode("etc"), 0o711);
    assert_eq!(mode("etc/pointsman"), 0o750);
}

#[test]
fn the_same_binary_makes_the_same_files_and_their_sums_are_true() {
    let (Some((first, files)), Some((_second, again))) = (made(), made()) else {
        return;
    };
    let sums = |files: &[PathBuf]| fs::read_to_string(files.last().unwrap()).unwrap();
    assert_eq!(sums(&files), sums(&again));
    assert_eq!(sums(&files).lines().count(), 2);
    let mut check = Command::new("sha256sum");
    check
        .current_dir(first.path().join("dist"))
        .args(["--check", "--strict", "SHA256SUMS"]);
    assert!(process::succeeds(&mut check));
    let archive = said("tar", &["-tzf"], &files[1]);
    for path in [
        "usr/bin/pointsman",
        "etc/pointsman/policies.d/",
        "etc/systemd/system/pointsman.service",
        "usr/share/doc/pointsman/copyright",
    ] {
        assert!(
            archive.lines().any(|line| line.ends_with(path)),
            "{path} not in\n{archive}"
        );
    }
}

#[test]
fn the_unit_is_systemds_and_locks_the_server_in() {
    let unit = lines("pointsman.service");
    for line in [
        "Type=notify",
        "WatchdogSec=30s",
        "User=pointsman",
        "StateDirectory=pointsman",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged",
        // A compiler that takes too much memory would end the server, and an order to stop the compilers.
        "OOMPolicy=continue",
        "KillMode=mixed",
    ] {
        assert!(unit.iter().any(|it| it == line), "{line}");
    }
    // Compiled policies could not run; and with the other there would be no CUDA devices before systemd 252.
    for off in ["MemoryDenyWriteExecute", "ProtectClock"] {
        assert!(!unit.iter().any(|it| it.starts_with(off)), "{off}");
    }
    if process::find_program("systemd-analyze").is_none() {
        println!("skipped: there is no systemd-analyze here");
        return;
    }
    // It wants the program to be there.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pointsman.service");
    let text = unit.join("\n").replace("/usr/bin/pointsman", "/bin/true");
    fs::write(&path, text.replace("man:pointsman(1)", "man:true(1)")).unwrap();
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output();
    let output = output.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let about_it: Vec<_> = told
        .lines()
        .filter(|line| line.contains("pointsman.service"))
        .collect();
    assert!(output.status.success() && about_it.is_empty(), "{told}");
}

#[test]
fn the_container_is_nobodys_root_and_fetches_nothing_but_its_base() {
    let file = lines("Containerfile");
    let word = |line: &String| line.split(' ').next().unwrap().to_owned();
    let instructions: BTreeSet<String> = file.iter().map(word).collect();
    for fetches in ["ADD", "RUN"] {
        assert!(!instructions.contains(fetches), "{fetches}");
    }
    let users: Vec<_> = file
        .iter()
        .filter_map(|line| line.strip_prefix("USER "))
        .collect();
    assert_eq!(users, ["65532:65532"]);
    assert_eq!(word(&file[0]), "FROM");
    // Models of the hub are kept where the root is not read-only.
    let value = |name: &str| {
        file.iter()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
    };
    assert!(Path::new(value("ENV HF_HOME=")).starts_with(value("VOLUME ")));
    // Whatever is copied is in the folder.
    let Some((folder, _)) = made() else {
        return;
    };
    let copied = file.iter().filter(|line| line.starts_with("COPY "));
    for line in copied {
        let mut words = line
            .split(' ')
            .skip(1)
            .filter(|word| !word.starts_with("--"));
        let from = words.next().unwrap();
        let path = folder.path().join("dist/container").join(from);
        assert!(path.exists(), "{line}");
    }
}

#[test]
fn the_container_has_a_glibc_as_new_as_the_binary_asks_for() {
    let made = |glibc: &str| made_over(&PROGRAM_TEXT.replace("2.31", glibc));
    for (glibc, base) in [
        ("2.36", "cc-debian12"),
        ("2.37", "cc-debian13"),
        ("2.41", "cc-debian13"),
    ] {
        let Some((folder, files)) = made(glibc) else {
            return;
        };
        files.unwrap();
        let file = folder.path().join("dist/container/Containerfile");
        let file = fs::read_to_string(file).unwrap();
        let from = format!("FROM gcr.io/distroless/{base}:nonroot");
        assert!(file.lines().any(|line| line == from), "{glibc}: {file}");
    }
    let Some((_folder, files)) = made("2.42") else {
        return;
    };
    let error = files.unwrap_err().to_string();
    assert!(error.contains("asks for glibc 2.42"), "{error}");
}

#[test]
fn a_binary_that_would_not_serve_by_itself_is_not_packed() {
    let check = "serve) echo no policies >&2; exit 1 ;;\nesac";
    let Some((_folder, files)) = made_over(
        &PROGRAM_TEXT
            .replace("serve)", "other)")
            .replace("esac", check),
    ) else {
        return;
    };
    let error = files.unwrap_err().to_string();
    assert!(error.contains("serve --check"), "{error}");
    assert!(error.ends_with("no policies"), "{error}");
}

#[test]
fn a_binary_that_has_grown_too_large_is_not_packed() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("program");
    fs::File::create(&binary)
        .unwrap()
        .set_len(SIZE_MAX + 1)
        .unwrap();
    let error = release_of(&binary).check(folder.path()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("the binary has 40000001 bytes"),
        "{error}"
    );
}

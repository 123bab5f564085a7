//! Workloads that are named as on the command line.

use pointsman_sim::workload::Arrival;

use super::*;

fn arrivals(text: &str, changes: Changes) -> Vec<Arrival> {
    let source = WorkloadSource::find(text, changes).unwrap();
    let mut workload = source.make(1).unwrap();
    std::iter::from_fn(|| workload.pop()).collect()
}

fn made(text: &str, changes: Changes) -> Vec<u64> {
    let arrivals = arrivals(text, changes).into_iter();
    arrivals.map(|arrival| arrival.at.0).collect()
}

fn said(text: &str) -> String {
    let error = WorkloadSource::find(text, Changes::default()).unwrap_err();
    format!("{error:#}")
}

#[test]
fn a_generator_is_known_by_its_name_and_its_keys() {
    let changes = Changes {
        requests_max: Some(5),
        ..Changes::default()
    };
    assert_eq!(
        made("poisson:rate=100,requests=9", Changes::default()).len(),
        9
    );
    assert_eq!(made("bursts:burst-every=10s", changes).len(), 5);
    assert_eq!(made("flood", changes).len(), 5);
    assert_eq!(
        made("agents:sessions=5,turns=1", Changes::default()).len(),
        5
    );
}

#[test]
fn a_file_is_known_by_its_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mooncake = r#"{"timestamp":1,"input_length":1,"output_length":1}"#;
    let faster = Changes {
        speed_up: 4.0,
        ..Changes::default()
    };
    assert_eq!(made(&file("a.jsonl", mooncake), faster), [250]);
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
    assert_eq!(made(&file("b.csv", azure), Changes::default()), [0]);
    let servegen = r#"{"client":1,"slots":[[0,1.0,1.0,"Gamma",1.0,1.0]],"input_tokens_q":[5],"output_tokens_q":[5]}"#;
    let path = format!("{}:lasting=60s,rate=2", file("c.jsonl", servegen));
    assert!((80..160).contains(&made(&path, Changes::default()).len()));
    let two = format!(
        "{}:lasting=60s,rate=2",
        file("two.jsonl", &[servegen; 2].join("\n"))
    );
    let with = |factor: &str| format!("{two},flood=1,flood-factor={factor}");
    // To see what the others have without the client that floods.
    let alone = made(&with("0"), Changes::default()).len();
    assert!((30..90).contains(&alone), "{alone}");
    let why = "servegen: flood-factor must be from 0 to 1000000, not -1";
    assert!(said(&with("-1")).contains(why), "{}", said(&with("-1")));
    let said = said(&file("d.txt", "hello"));
    assert!(said.contains("it is no trace"), "{said}");
}

#[test]
fn a_file_that_is_there_and_cannot_be_read_is_not_taken_for_a_generator() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content, why) in [
        ("t.jsonl.gz", &[0x1f, 0x8b, 8][..], "it is compressed: "),
        ("t.jsonl", &[0xff][..], "it is no text: "),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let path = path.display().to_string();
        let said = said(&path);
        assert!(said.starts_with(&format!("{path}: {why}")), "{said}");
    }
    let gone = said(&folder.path().join("gone.jsonl").display().to_string());
    assert!(gone.starts_with("there is no trace "), "{gone}");
}

#[test]
fn what_is_neither_is_refused_with_what_there_is() {
    let unknown = said("poison:rate=1");
    assert!(unknown.contains("did you mean `poisson`?"), "{unknown}");
    let key = said("agents:session=5");
    assert!(key.contains("did you mean `sessions`?"), "{key}");
}

#[test]
fn keys_of_bursts_and_floods_count_without_their_beginning() {
    let made = |text: &str| arrivals(text, Changes::default());
    for (short, whole, default) in [
        (
            "bursts:burst-factor=30,burst-lasting=2s",
            "poisson:burst-every=60s,burst-factor=30,burst-lasting=2s",
            "bursts",
        ),
        (
            "flood:flood-factor=20,flood-lasting=10s",
            "poisson:flood-from=30s,flood-factor=20,flood-lasting=10s",
            "flood",
        ),
    ] {
        assert_eq!(made(short), made(whole));
        assert_ne!(made(short), made(default));
    }
    let flooded = made("flood:flood-from=1s,requests=200");
    let first = flooded.iter().filter(|arrival| arrival.tenant == 0).count();
    assert!(
        (1..100).contains(&first),
        "{first} of 200: the other tenant floods"
    );
}

#[test]
fn lengths_have_the_mean_that_is_asked_for_however_great_it_is() {
    let made = |text: &str| arrivals(text, Changes::default());
    let long = made("poisson:requests=4000,prompt=60000,output=20000");
    let mean = |of: fn(&Arrival) -> u32| {
        let sum: f64 = long.iter().map(|it| f64::from(of(it))).sum();
        sum / 4000.0
    };
    let (prompt, output) = (mean(|it| it.prompt.tokens), mean(|it| it.output_tokens));
    assert!((55_000.0..65_000.0).contains(&prompt), "{prompt}");
    assert!((18_300.0..21_700.0).contains(&output), "{output}");
    assert_eq!(
        made("poisson:prompt=4000,output=500"),
        made("poisson:prompt=4000,output=500,prompt-max=32000,output-max=4000")
    );
    for greatest in ["poisson:prompt=4294967295", "agents:output=4294967295"] {
        WorkloadSource::find(greatest, Changes::default()).unwrap();
    }
}

#[test]
fn keys_that_would_say_nothing_and_numbers_that_cannot_be_are_refused() {
    for (text, why) in [
        (
            "poisson:burst-factor=30",
            "poisson: burst-lasting and burst-factor say nothing without burst-every: add burst-every=1min",
        ),
        (
            "bursts:flood-lasting=5s",
            "bursts: flood-lasting and flood-factor say nothing without flood-from: add flood-from=30s",
        ),
        (
            "poisson:prompt-max=999",
            "poisson: prompt-max must be at least the mean, prompt=1000, not 999",
        ),
        (
            "flood:output=300,output-max=200",
            "flood: output-max must be at least the mean, output=300, not 200",
        ),
        (
            "poisson:rate=1e-9",
            "poisson: rate must be from 0.000001 to 1000000, not 0.000000001",
        ),
        (
            "agents:rate=0",
            "agents: rate must be from 0.000001 to 1000000, not 0",
        ),
        (
            "poisson:rate=inf",
            "poisson: rate must be from 0.000001 to 1000000, not inf",
        ),
        (
            "bursts:burst-factor=-1",
            "bursts: burst-factor must be from 0.000001 to 1000000, not -1",
        ),
        (
            "flood:flood-factor=1e9",
            "flood: flood-factor must be from 0.000001 to 1000000, not 1000000000",
        ),
        (
            "flood:flood-factor=nan",
            "flood: flood-factor must be from 0.000001 to 1000000, not NaN",
        ),
        (
            "poisson:throughput=7",
            "poisson: throughput must be from 0 to 1, not 7",
        ),
        (
            "poisson:models-zipf=nan",
            "poisson: models-zipf must be at least 0, not NaN",
        ),
        (
            "agents:turns=-1",
            "agents: turns must be from 1 to 1000000, not -1",
        ),
        (
            "agents:sessions=3,turns=inf",
            "agents: turns must be from 1 to 1000000, not inf",
        ),
    ] {
        let said = said(text);
        assert!(said.starts_with(why), "{said}");
    }
}

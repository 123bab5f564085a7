//! Tests of the questions to servers, and of reading their answers.

use std::future::ready;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::client::{Connections, Trust};

fn vllm_metrics() -> MetricNames {
    ServerSoftware::Vllm.metric_names()
}

#[tokio::test]
async fn a_question_is_asked_again_where_its_answer_is_late_and_not_where_nobody_is_there() {
    let late = || Err(CallError::Timeout(PATIENCE));
    let refused = || Err(CallError::Unreachable("refused".to_owned()));
    let silent = Some(Availability::Silent);
    for (answers, ends, questions) in [
        (vec![Ok(())], None, 1),
        (vec![late(), late(), Ok(())], None, 3),
        (vec![late(), late(), late()], silent, 3),
        (vec![refused()], silent, 1),
        (vec![late(), refused()], silent, 2),
    ] {
        let given = answers.len();
        let mut answers = answers.into_iter();
        let answer = patiently(|| ready(answers.next().expect("no question more"))).await;
        let found = answer.err().and_then(|error| unheard(&error, 0));
        assert_eq!((found, given - answers.len()), (ends, questions));
    }
}

#[test]
fn a_server_that_is_late_is_busy_while_requests_of_ours_run_there() {
    let late = CallError::Timeout(PATIENCE);
    assert_eq!(unheard(&late, 1), Some(Availability::Busy));
    let refused = CallError::Unreachable("refused".to_owned());
    assert_eq!(unheard(&refused, 1), Some(Availability::Silent));
}

#[test]
fn a_server_that_this_machine_has_no_means_to_ask_stays_as_it_was() {
    let lacking = CallError::NoMeans("too many open files".to_owned());
    for ours in [0, 1] {
        assert_eq!(unheard(&lacking, ours), None);
    }
}

#[test]
fn the_models_of_each_software_are_read_and_known_by_their_owners() {
    for (answer, owner, models) in [
        (
            json!({"object": "list", "data": [
                {"id": "meta/llama", "owned_by": "vllm", "max_model_len": 8192}]}),
            ServerSoftware::Vllm,
            vec![("meta/llama", Some(8192))],
        ),
        (
            json!({"models": [], "object": "list", "data": [
                {"id": "a", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}},
                {"id": "b", "owned_by": "llamacpp", "status": {"value": "unloaded"}},
                {"id": "c", "owned_by": "llamacpp", "status": {"failed": true}}]}),
            ServerSoftware::LlamaCpp,
            vec![("a", Some(4096)), ("b", None)],
        ),
        (
            json!({"data": [{"id": "ann/own:1b", "owned_by": "ann"},
                {"id": "qwen:7b", "owned_by": "library"}]}),
            ServerSoftware::Ollama,
            vec![("ann/own:1b", None), ("qwen:7b", None)],
        ),
        (
            json!({"data": [{"id": "x"}]}),
            ServerSoftware::OpenAi,
            vec![("x", None)],
        ),
    ] {
        let found = models_in(&answer).unwrap();
        assert_eq!(software_of(&answer), Some(owner));
        let found: Vec<_> = found
            .iter()
            .map(|model| (model.name.as_str(), model.context_tokens))
            .collect();
        assert_eq!(found, models);
    }
    for wrong in [json!(null), json!([]), json!({}), json!({"data": 1})] {
        assert_eq!(models_in(&wrong), None);
        assert_eq!(software_of(&wrong), None);
    }
}

#[test]
fn the_metrics_of_vllm_tell_load_and_blocks() {
    let text = "# HELP vllm:num_requests_running Number of requests\n\
        # TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"a{}b, c\"} 3.0\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 4.0\n\
        vllm:num_requests_waiting{engine=\"0\"} 2.0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
        vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_gpu_blocks=\"1000\"} 1.0\n\
        broken line\nvllm:other 1e3 1700000000\n";
    let load = load_of(&Samples::parse(text), &vllm_metrics());
    assert_eq!(load.present, Some(9));
    assert_eq!(load.tokens_per_block, Some(16));
    let kv = load.kv.unwrap();
    assert_eq!((kv.blocks_total, kv.blocks_free), (1000, 750));
}

#[test]
fn the_engines_of_a_server_add_up_but_for_the_share_of_its_blocks_that_is_in_use() {
    let text = (0..8).map(|engine: u32| {
        let usage = if engine < 4 { "0.25" } else { "0.75" };
        format!(
            "vllm:num_requests_running{{engine=\"{engine}\"}} 2.0\n\
             vllm:num_requests_waiting{{engine=\"{engine}\"}} 1.0\n\
             vllm:kv_cache_usage_perc{{engine=\"{engine}\"}} {usage}\n\
             vllm:cache_config_info{{engine=\"{engine}\",num_gpu_blocks=\"8000\"}} 1.0\n"
        )
    });
    let text: String = text.collect();
    let load = load_of(&Samples::parse(&text), &vllm_metrics());
    assert_eq!(load.present, Some(24));
    let kv = load.kv.unwrap();
    assert_eq!((kv.blocks_total, kv.blocks_free), (8000, 4000));
}

#[test]
fn what_a_server_does_not_tell_is_absent_and_not_zero() {
    let nothing = ServerLoad::default();
    assert_eq!(load_of(&Samples::parse(""), &vllm_metrics()), nothing);
    assert_eq!(sglang_load(None, None), nothing);
    assert_eq!(llama_load(None, Some(&json!({}))), nothing);
    let zero = "vllm:num_requests_running 0\n";
    let load = load_of(&Samples::parse(zero), &vllm_metrics());
    assert_eq!(load.present, Some(0));
}

#[test]
fn the_loads_of_sglang_are_those_of_all_its_ranks() {
    let info = json!({"page_size": 16, "max_running_requests": 100});
    let rank = |used| {
        json!({"num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": used,
            "max_total_num_tokens": 1600})
    };
    let loads = json!({"loads": [rank(160), rank(320)]});
    let load = sglang_load(Some(&info), Some(&loads));
    assert_eq!((load.capacity, load.present), (Some(100), Some(6)));
    let kv = load.kv.unwrap();
    assert_eq!((kv.blocks_total, kv.blocks_free), (200, 170));
}

#[test]
fn the_slots_of_llama_cpp_are_counted_that_process() {
    let props = json!({"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}});
    let slots = json!([{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}]);
    let load = llama_load(Some(&props), Some(&slots));
    assert_eq!((load.capacity, load.present), (Some(4), Some(1)));
}

/// The questions to a server for which these models are named.
fn asker(models: &[&str]) -> Asker {
    let mut server = ServerConfig::new("http://127.0.0.1:1".parse().unwrap());
    server.models = models.iter().map(|name| (*name).to_owned()).collect();
    asker_of(&server)
}

fn asker_of(server: &ServerConfig) -> Asker {
    let connections = Connections::trusting(Trust::Nobody).unwrap();
    Asker::new(ServerClient::new(connections, server), server)
}

/// Answers one question, on a connection of its own.
async fn answer(listener: &TcpListener, status: &str, body: &str) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let read = stream.read(&mut [0; 4096]).await.unwrap();
    assert!(read > 0, "nothing is asked");
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn the_blocks_of_a_server_count_while_a_few_answers_with_its_metrics_are_missing() {
    let metrics = "vllm:num_requests_running 3\n\
        vllm:kv_cache_usage_perc 0.25\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut asker = asker_of(&ServerConfig::new(url.parse().unwrap()));
    let blocks = Some((16, 1000, 750));
    for (is_told, present, known) in [
        (false, None, None),
        (true, Some(3), blocks),
        (false, None, blocks),
        (false, None, blocks),
        (true, Some(3), blocks),
        (false, None, blocks),
        (false, None, blocks),
        (false, None, None),
        (false, None, None),
        (true, Some(3), blocks),
    ] {
        let (status, body) = if is_told {
            ("200 OK", metrics)
        } else {
            ("503 Service Unavailable", "")
        };
        let asked = asker.measured(ServerSoftware::Vllm);
        let ((load, counted), ()) = tokio::join!(asked, answer(&listener, status, body));
        let told = load.tokens_per_block.zip(load.kv);
        let told = told.map(|(tokens, kv)| (tokens, kv.blocks_total, kv.blocks_free));
        assert_eq!((load.present, told), (present, known));
        assert_eq!(counted.map(Headcount::all), present);
    }
}

#[tokio::test]
async fn a_server_that_lists_no_models_takes_nothing_unless_they_are_named() {
    let (finding, naming) = (asker(&[]), asker(&["demo"]));
    for (status, hint) in [
        (401, ": its `key` is missing, or is not the right one"),
        (403, ": its `key` is missing, or is not the right one"),
        (
            404,
            ": the path in its `url` is wrong, or its `models` have to be named",
        ),
        (405, ": its `models` have to be named"),
        (501, ": its `models` have to be named"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let why = format!("/v1/models answers {status}{hint}");
        assert_eq!(finding.unlisted(status), Some(why));
        assert_eq!(naming.unlisted(status), None);
    }
    for status in [429, 500, 502, 503] {
        let status = StatusCode::from_u16(status).unwrap();
        let why = Some(format!("/v1/models answers {status}"));
        assert_eq!(finding.unlisted(status), why);
        assert_eq!(naming.unlisted(status), why);
    }
    assert_eq!(finding.unlisted(StatusCode::OK), None);
}

#[test]
fn models_that_are_named_have_the_contexts_of_those_that_are_found() {
    let model = |name: &str, context_tokens| FoundModel {
        name: name.to_owned(),
        context_tokens,
    };
    let found = [model("other", Some(1)), model("a", Some(4096))];
    let models = named(&["a".to_owned(), "b".to_owned()], &found);
    assert_eq!(*models, [model("a", Some(4096)), model("b", None)]);
}

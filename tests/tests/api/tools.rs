//! Tools that models call, over HTTP: whole and streamed, in each way in which models write calls.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Client, chat};
use pointsman_tests::extras::ClientScript;
use pointsman_tests::serving::Serving;
use pointsman_tests::tools::ToolModels;
use serde_json::{Value, json};

const MODELS: [&str; 5] = ["tags", "marked", "named", "bare", "special"];

async fn serving(models: &ToolModels) -> Result<Serving> {
    Serving::start(|config| models.serve(config)).await
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// Two tools, the second of which has a small number of possible calls.
fn tools() -> Value {
    let legs = json!({
        "type": "object", "properties": {"animal": {"type": "string", "maxLength": 6}},
        "required": ["animal"], "additionalProperties": false,
    });
    let roll = json!({
        "type": "object", "properties": {"dice": {"enum": [1, 2, 3]}},
        "required": ["dice"], "additionalProperties": false,
    });
    json!([tool("legs", legs), tool("roll", roll)])
}

/// A chat with a model that is told of tools, with these fields.
fn with_tools(model: &str, fields: Value) -> Value {
    let mut body = chat("How many legs has a fox?");
    body["model"] = json!(model);
    body["tools"] = tools();
    body["max_tokens"] = json!(400);
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

/// The only choice of an answer.
async fn choice(client: Client, body: &Value) -> Result<Value> {
    let answer = client.post("/v1/chat/completions", body).await?.json()?;
    let choice = answer["choices"][0].clone();
    ensure!(choice.is_object(), "{answer}");
    Ok(choice)
}

/// The error of a request that is refused: its field, and its text.
async fn refused(client: Client, path: &str, body: &Value) -> Result<(Value, String)> {
    let answer = client.post(path, body).await?;
    ensure!(answer.status == 400, "{answer:?}");
    let error = answer.json()?["error"].clone();
    let message = error["message"].as_str().unwrap_or_default().to_owned();
    Ok((error["param"].clone(), message))
}

/// The name and the arguments of a call.
fn called(call: &Value) -> Result<(String, Value)> {
    ensure!(call["type"] == "function", "{call}");
    let id = call["id"].as_str().context("a call has an id")?;
    ensure!(
        id.len() == 9 && id.chars().all(|char| char.is_ascii_alphanumeric()),
        "{id}"
    );
    let name = call["function"]["name"].as_str().context("no name")?;
    let arguments = call["function"]["arguments"]
        .as_str()
        .context("no arguments")?;
    Ok((name.to_owned(), serde_json::from_str(arguments)?))
}

/// The choice of a whole answer that the chunks of a streamed one come to.
async fn streamed(client: Client, mut body: Value) -> Result<Value> {
    body["stream"] = json!(true);
    let mut stream = client.stream(&body).await?;
    let (mut text, mut calls, mut reason) = (String::new(), Vec::new(), Value::Null);
    while let Some(event) = stream.event().await?.filter(|event| event != "[DONE]") {
        let chunk: Value = serde_json::from_str(&event)?;
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for part in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index: usize = serde_json::from_value(part["index"].clone())?;
            let arguments = part["function"]["arguments"]
                .as_str()
                .context("no arguments")?;
            if index == calls.len() {
                ensure!(arguments.is_empty(), "{part}");
                let mut begun = part.clone();
                begun.as_object_mut().context("no object")?.remove("index");
                calls.push(begun);
                continue;
            }
            ensure!(part.get("id").is_none(), "{part}");
            let call = calls.last_mut().context("no call has begun")?;
            let so_far = call["function"]["arguments"].as_str().unwrap_or_default();
            call["function"]["arguments"] = json!(format!("{so_far}{arguments}"));
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    Ok(json!({"text": text, "calls": calls, "reason": reason}))
}

/// A choice of a whole answer in the terms of [`streamed`], without the ids, which no two answers share.
fn told(choice: &Value) -> Value {
    let message = &choice["message"];
    json!({
        "text": message["content"].as_str().unwrap_or_default(),
        "calls": message["tool_calls"].as_array().cloned().unwrap_or_default(),
        "reason": choice["finish_reason"],
    })
}

fn without_ids(mut told: Value) -> Value {
    for call in told["calls"].as_array_mut().into_iter().flatten() {
        call["id"] = Value::Null;
    }
    told
}

#[tokio::test]
async fn a_call_that_has_to_be_made_is_made_and_streams_tell_the_same() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    for model in MODELS {
        for seed in 0..3 {
            let drawn = json!({"tool_choice": "required", "temperature": 1.5, "seed": seed});
            let body = with_tools(model, drawn);
            let choice = choice(client, &body).await?;
            ensure!(choice["finish_reason"] == "tool_calls", "{choice}");
            ensure!(choice["message"]["content"].is_null(), "{choice}");
            let calls = choice["message"]["tool_calls"].as_array();
            let calls = calls.context("no calls")?;
            ensure!((1..=8).contains(&calls.len()), "{choice}");
            for call in calls {
                let (name, arguments) = called(call)?;
                match &*name {
                    "legs" => ensure!(arguments["animal"].is_string(), "{call}"),
                    "roll" => ensure!((1..=3).contains(&arguments["dice"].as_i64().unwrap_or(0))),
                    _ => anyhow::bail!("{call}"),
                }
            }
            let streamed = streamed(client, body).await?;
            ensure!(
                without_ids(streamed.clone()) == without_ids(told(&choice)),
                "{streamed}"
            );
        }
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_named_function_is_called_once() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let named = json!({"type": "function", "function": {"name": "roll"}});
    for model in MODELS {
        let body = with_tools(model, json!({"tool_choice": named}));
        let choice = choice(serving.client, &body).await?;
        let calls = choice["message"]["tool_calls"].as_array();
        let [call] = &calls.context("no calls")?[..] else {
            anyhow::bail!("{choice}");
        };
        ensure!(called(call)?.0 == "roll", "{choice}");
        ensure!(choice["finish_reason"] == "tool_calls", "{choice}");
    }
    serving.server.stop().await
}

#[tokio::test]
async fn calls_that_a_model_chooses_to_make_are_read_out_of_its_text() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let object = r#"{"name": "legs", "arguments": {"animal": "fox"}}"#;
    let written = [
        (
            "tags",
            format!("Let me see.\n<tool_call>\n{object}\n</tool_call>"),
        ),
        ("marked", format!("Let me see. [TOOL_CALLS] [{object}]")),
        (
            "named",
            r#"Let me see. [TOOL_CALLS]legs[ARGS]{"animal": "fox"}"#.to_owned(),
        ),
        ("bare", object.replace("arguments", "parameters")),
    ];
    for (model, written) in written {
        // It has no choice here; what it says is read as if it had.
        let body = with_tools(model, json!({"guided_choice": [written]}));
        let choice = choice(client, &body).await?;
        let calls = &choice["message"]["tool_calls"];
        ensure!(
            called(&calls[0])? == ("legs".to_owned(), json!({"animal": "fox"})),
            "{choice}"
        );
        let text = if model == "bare" {
            Value::Null
        } else {
            json!("Let me see.")
        };
        ensure!(choice["message"]["content"] == text, "{choice}");
        ensure!(choice["finish_reason"] == "tool_calls", "{choice}");
        let streamed = streamed(client, body.clone()).await?;
        ensure!(
            without_ids(streamed.clone()) == without_ids(told(&choice)),
            "{streamed}"
        );
        // To a client that gives no tools, or forbids calls, it is text.
        for fields in [json!({"tools": []}), json!({"tool_choice": "none"})] {
            let mut body = body.clone();
            let fields = fields.as_object().cloned().unwrap_or_default();
            body.as_object_mut().context("an object")?.extend(fields);
            let choice = self::choice(client, &body).await?;
            ensure!(choice["message"]["content"] == json!(written), "{choice}");
            ensure!(choice["message"].get("tool_calls").is_none(), "{choice}");
            ensure!(choice["finish_reason"] == "stop", "{choice}");
        }
    }
    serving.server.stop().await
}

#[tokio::test]
async fn a_conversation_goes_on_with_the_results_of_calls() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    for model in MODELS {
        let mut body = with_tools(model, json!({"max_tokens": 5}));
        let before = client.post("/v1/chat/completions", &body).await?.json()?;
        let call = json!({
            "id": "abcdefghi", "type": "function",
            "function": {"name": "legs", "arguments": "{\"animal\": \"fox\"}"},
        });
        let messages = body["messages"].as_array_mut().context("a list")?;
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "abcdefghi", "content": "4"}));
        let after = client.post("/v1/chat/completions", &body).await?.json()?;
        let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64();
        ensure!(tokens(&after) > tokens(&before), "{after}");
    }
    serving.server.stop().await
}

#[tokio::test]
async fn a_model_that_knows_no_tools_refuses_them_by_name() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let path = "/v1/chat/completions";
    let (param, why) = refused(client, path, &with_tools("demo", json!({}))).await?;
    ensure!(param == "tools", "{param}");
    ensure!(
        why == "`tools`: the model's chat template has no tools",
        "{why}"
    );
    let mut body = chat("Hi");
    let messages = body["messages"].as_array_mut().context("a list")?;
    let function = json!({"name": "legs", "arguments": "{}"});
    let call = json!({"id": "a", "type": "function", "function": function});
    messages.push(json!({"role": "assistant", "tool_calls": [call]}));
    messages.push(json!({"role": "tool", "tool_call_id": "a", "content": "4"}));
    let (param, why) = refused(client, path, &body).await?;
    ensure!(
        param == "messages[1]" && why.contains("no tools"),
        "{param}: {why}"
    );
    // What nobody asks the model changes nothing.
    for fields in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let choice = choice(client, &with_tools("demo", fields)).await?;
        ensure!(choice["message"]["content"].is_string(), "{choice}");
    }
    serving.server.stop().await
}

#[tokio::test]
async fn tools_that_cannot_be_served_are_refused_where_it_goes_wrong() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let chats = "/v1/chat/completions";
    let unkept =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}});
    let broken = json!([tools()[0], tool("other", unkept)]);
    let of_other = json!({"type": "function", "function": {"name": "other"}});
    let asks_twice = json!({"tool_choice": "required", "response_format": {"type": "json_object"}});
    let asks_for_either = json!({"response_format": {"type": "json_object"}});
    let mut alone = chat("Hi");
    alone["messages"] = json!([{"role": "tool", "tool_call_id": "a", "content": "4"}]);
    alone["model"] = json!("tags");
    for (path, body, field, says) in [
        (
            chats,
            with_tools("tags", asks_twice),
            "tool_choice",
            "ask for two forms",
        ),
        (
            chats,
            with_tools("tags", asks_for_either),
            "tools",
            "ask for two forms",
        ),
        (
            "/v1/completions",
            json!({"model": "tags", "prompt": "a", "tools": tools()}),
            "tools",
            "/v1/chat/completions",
        ),
        (
            chats,
            with_tools("tags", json!({"tools": broken, "tool_choice": "required"})),
            "tools[1].function.parameters",
            "is nothing that an answer can be kept to",
        ),
        (
            chats,
            with_tools("tags", json!({"tool_choice": of_other})),
            "tool_choice",
            "not in `tools`",
        ),
        (
            chats,
            alone,
            "messages[0].tool_call_id",
            "there is no call `a`",
        ),
    ] {
        let (param, why) = refused(client, path, &body).await?;
        ensure!(param == field && why.contains(says), "{param}: {why}");
    }
    // Where the model writes what it likes, no schema has to be one that it can be kept to.
    let body = with_tools("tags", json!({"tools": broken, "max_tokens": 1}));
    let choice = choice(client, &body).await?;
    ensure!(choice["finish_reason"] == "length", "{choice}");
    serving.server.stop().await
}

#[tokio::test]
async fn of_several_calls_all_count_or_the_first() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let call = |dice: u32| format!(r#"{{"name": "roll", "arguments": {{"dice": {dice}}}}}"#);
    let (one, two) = (call(1), call(2));
    let tags = format!("<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{two}\n</tool_call>");
    let bare = format!("{one}; {two}").replace("arguments", "parameters");
    let named = r#"[TOOL_CALLS]roll[ARGS]{"dice": 1}[TOOL_CALLS]roll[ARGS]{"dice": 2}"#;
    for (model, written) in [
        ("tags", tags),
        ("marked", format!("[TOOL_CALLS] [{one}, {two}]")),
        ("named", named.to_owned()),
        ("bare", bare),
    ] {
        for (parallel, dice) in [(true, &[1, 2][..]), (false, &[1])] {
            let fields = json!({"guided_choice": [written], "parallel_tool_calls": parallel});
            let body = with_tools(model, fields);
            let choice = choice(client, &body).await?;
            let calls = choice["message"]["tool_calls"]
                .as_array()
                .context("no calls")?;
            let ids: HashSet<_> = calls.iter().map(|call| call["id"].to_string()).collect();
            ensure!(ids.len() == calls.len(), "{choice}");
            let rolled = calls.iter().map(|call| Ok(called(call)?.1["dice"].clone()));
            ensure!(
                json!(rolled.collect::<Result<Vec<_>>>()?) == json!(dice),
                "{choice}"
            );
            ensure!(choice["message"]["content"].is_null(), "{choice}");
            let streamed = streamed(client, body).await?;
            ensure!(
                without_ids(streamed.clone()) == without_ids(told(&choice)),
                "{streamed}"
            );
        }
    }
    serving.server.stop().await
}

#[tokio::test]
async fn a_model_that_is_told_of_one_call_in_a_message_makes_one_and_goes_on_from_it() -> Result<()>
{
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let written = r#"{"name": "roll", "parameters": {"dice": 1}}; {"name": "roll", "parameters": {"dice": 2}}"#;
    let drawn = |seed: u32| json!({"tool_choice": "required", "temperature": 1.5, "seed": seed});
    let asked = (0..6)
        .map(drawn)
        .chain([json!({"guided_choice": [written]})]);
    for fields in asked {
        let mut body = with_tools("single", fields);
        let choice = choice(client, &body).await?;
        let calls = choice["message"]["tool_calls"].as_array();
        let [call] = &calls.context("no calls")?[..] else {
            anyhow::bail!("{choice}");
        };
        called(call)?;
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "4"});
        let messages = body["messages"].as_array_mut().context("a list")?;
        messages.extend([choice["message"].clone(), result]);
        (body["tool_choice"], body["max_tokens"]) = (json!("auto"), json!(5));
        let answer = client.post("/v1/chat/completions", &body).await?;
        ensure!(answer.status == 200, "{:?}", answer.json());
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn an_answer_that_is_cut_in_a_call_says_so() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let fields = json!({"tool_choice": "required", "max_tokens": 16, "n": 2});
    let answer = with_tools("tags", fields);
    let answer = serving
        .client
        .post("/v1/chat/completions", &answer)
        .await?
        .json()?;
    let choices = answer["choices"].as_array().context("no choices")?;
    ensure!(choices.len() == 2, "{answer}");
    for choice in choices {
        ensure!(choice["finish_reason"] == "length", "{choice}");
    }
    serving.server.stop().await
}

#[tokio::test]
async fn calls_of_strict_functions_keep_to_their_schemas_where_the_model_chooses() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    let client = serving.client;
    let mut strict = tools();
    for tool in strict.as_array_mut().context("a list")? {
        tool["function"]["strict"] = json!(true);
    }
    for model in MODELS {
        for seed in 0..3 {
            let drawn =
                json!({"tools": strict, "temperature": 1.5, "seed": seed, "max_tokens": 40});
            let body = with_tools(model, drawn);
            let choice = choice(client, &body).await?;
            for call in choice["message"]["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
            {
                if choice["finish_reason"] == "tool_calls" {
                    called(call)?;
                }
            }
            let streamed = streamed(client, body).await?;
            ensure!(
                without_ids(streamed.clone()) == without_ids(told(&choice)),
                "{streamed}"
            );
        }
    }
    // A form of its own does not go with that.
    let fields = json!({"tools": strict, "guided_regex": "a"});
    let (param, why) = refused(client, "/v1/chat/completions", &with_tools("tags", fields)).await?;
    ensure!(
        param == "tools" && why.contains("ask for two forms"),
        "{param}: {why}"
    );
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_calls_tools() -> Result<()> {
    let models = ToolModels::make()?;
    let serving = serving(&models).await?;
    ClientScript::python_tools().run(&serving).await?;
    serving.idle().await?;
    serving.server.stop().await
}

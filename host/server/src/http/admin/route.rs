//! Where a request would go, and why. Nothing is changed by asking.

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::openai::{self, Asker};
use super::super::router::json as reply;
use super::super::{App, Reply, body};
use super::in_time;
use crate::config::DEFAULT_TENANT;
use crate::driver::operator::{Contender, Operator, Outlook, Prospect, Teller, Would};

pub(super) async fn outlook(app: &App, request: Request<Incoming>) -> Result<Reply, ApiError> {
    let headers = request.headers().clone();
    let body = body::read(request, &app.http).await?;
    let mut fields = Fields::parse(&body)?;
    let tenant: Option<String> = fields.take_as("tenant", "the name of a tenant", |_| true)?;
    let tenant = tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    let asker = Asker {
        tenant: &tenant,
        headers: &headers,
    };
    let prospect = openai::prospect(app, asker, fields).await?;
    let question = Box::new(prospect.clone());
    let outlook = in_time(
        app.driver
            .operate(|answer| Operator::Route(question, answer)),
    )
    .await?;
    let outlook = outlook.map_err(|error| ApiError::field("tenant", error.to_string()))?;
    Ok(reply(StatusCode::OK, &shown(&prospect, &outlook)))
}

fn shown(prospect: &Prospect, outlook: &Outlook) -> Value {
    let (would, executor, until) = match &outlook.would {
        Would::Place(executor) => ("place", Some(executor), None),
        Would::Wait => ("wait", None, None),
        Would::Hold(until) => ("hold", None, until.map(|until| until.0)),
        Would::GiveUp => ("give-up", None, None),
    };
    let candidates = outlook.candidates.iter();
    json!({
        "would": would,
        "executor": executor,
        "until_micros": until,
        "by": teller(&outlook.by),
        "executors_named": outlook.named,
        "candidates": candidates.map(contender).collect::<Value>(),
        "executors_total": outlook.executors_total,
        "unexplained": outlook.unexplained,
        "request": {
            "model": prospect.model,
            "tenant": prospect.tenant,
            "prompt_tokens": prospect.prompt_tokens,
            "output_tokens_max": prospect.output_tokens_max,
        },
    })
}

fn teller(by: &Teller) -> Value {
    match by {
        Teller::BuiltIn => json!({
            "policy": null,
            "reason": "no policy routes: the first executor with room",
        }),
        Teller::Faulted { policy, detail } => json!({
            "policy": null,
            "reason": format!("policy {policy} failed: the first executor with room"),
            "fault": detail,
        }),
        Teller::Policy {
            name,
            number,
            reason,
        } => json!({"policy": name, "number": number, "reason": reason}),
    }
}

fn contender(contender: &Contender) -> Value {
    let (takes, why) = match &contender.interlock {
        Ok(why) => (true, *why),
        Err(why) => (false, why.as_str()),
    };
    let said = contender.said.as_ref();
    json!({
        "executor": contender.executor,
        "takes_it_now": takes,
        "interlock": why,
        "eligible": said.map(|said| said.eligible),
        "cost": said.map(|said| said.cost),
        "note": said.map(|said| said.note.as_str()),
    })
}

//! The ways in which released models write calls.

use super::*;
use crate::chat::SpecialTokens;

/// Chat templates of released models, as far as they bear marks: the rest tells nothing of calls.
const RELEASED: [(&str, &str, Option<CallSyntax>); 15] = [
    (
        "Llama 3, without tools",
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' }}",
        None,
    ),
    (
        "Llama 3.1 and 3.3",
        r#"{{- "Environment: ipython\n" }}{{- "<|python_tag|>" + tool_call.name + ".call(" }}{{- '"parameters": ' }}"#,
        Some(CallSyntax::Bare),
    ),
    (
        "Llama 3.2, which has no tools of its own",
        r#"{{- "Environment: ipython\n" }}{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}"#,
        Some(CallSyntax::Bare),
    ),
    (
        "Llama Nemotron Super 1.5",
        r#"{{- '<TOOLCALL>[' -}}{{- '{"name": "' + fn.name + '", "arguments": ' -}}{{- ']</TOOLCALL>' -}}"#,
        None,
    ),
    (
        "Hermes 2 Pro and 3",
        r#"{{- "Each function call should be enclosed within <tool_call> </tool_call> XML tags." }}"#,
        Some(CallSyntax::Tags),
    ),
    (
        "Mistral 7B v0.2, without tools",
        "{{- ' [INST] ' + message['content'] + ' [/INST]' }}",
        None,
    ),
    (
        "Mistral 7B v0.3",
        r#"{{- "[TOOL_CALLS] [" }}{{- ', "id": "' + tool_call.id + '"}' }}{{- "]" + eos_token }}"#,
        Some(CallSyntax::MarkedList),
    ),
    (
        "Mistral Nemo",
        r#"{{- "[AVAILABLE_TOOLS][" }}{{- "[TOOL_CALLS][" }}{{- ', "id": "' + tool_call.id + '"}' }}"#,
        Some(CallSyntax::MarkedList),
    ),
    (
        "Mistral Small 3.1",
        r#"{{- "[TOOL_CALLS] [" }}{{- out[:-1] }}{{- ', "id": "' + tool_call.id[-9:] + '"}' }}"#,
        Some(CallSyntax::MarkedList),
    ),
    (
        "Mistral Small 3.2",
        "{{- '[TOOL_CALLS]' + call.function.name }}{{- '[CALL_ID]' + call.id }}{{- '[ARGS]' + arguments }}",
        Some(CallSyntax::MarkedName),
    ),
    (
        "Qwen2.5 and QwQ",
        r#"{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}"#,
        Some(CallSyntax::Tags),
    ),
    (
        "Qwen3",
        r#"{{- '<think>\n\n</think>\n\n' }}{{- '<tool_call>\n{"name": "' }}{{- '", "arguments": ' }}{{- '}\n</tool_call>' }}"#,
        Some(CallSyntax::Tags),
    ),
    (
        "Qwen3 Coder",
        r"{{- '<tool_call>\n<function=' + tool_call.name + '>\n' }}{{- '</function>\n</tool_call>' }}",
        None,
    ),
    (
        "Functionary v3.1",
        r#"{{- "Think step by step, then call <function=example_function_name>{...}</function>" }}{{- "<|python_tag|>" }}"#,
        None,
    ),
    (
        "DeepSeek R1 Distill",
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name}}",
        None,
    ),
];

/// The loop over messages of Llama 3.1 and later, as far as it is about calls.
const ONE_CALL: &str = "\
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception(\"This model only supports single tool-calls at once!\") }}
        {%- endif %}
        {{- message.tool_calls[0].function.arguments | tojson }}
    {%- elif message.role == \"tool\" or message.role == \"ipython\" %}
        {{- message.content }}
    {%- endif %}
{%- endfor %}";

#[test]
fn a_template_that_refuses_several_calls_in_a_message_is_found_out() {
    let any = "{%- for m in messages %}{{ m.tool_calls | length }}{%- endfor %}";
    let every = "{{ raise_exception('there are messages') }}";
    for (template, refuses) in [(ONE_CALL, true), (any, false), (every, false)] {
        let template = ChatTemplate::compile(template.to_owned(), &SpecialTokens::default());
        assert_eq!(refuses_several(&template.unwrap()), refuses);
    }
}

#[test]
fn the_templates_of_released_models_tell_how_they_write_calls() {
    for (model, template, syntax) in RELEASED {
        assert_eq!(syntax_of(template), syntax, "{model}");
    }
}

//! JSON-RPC 2.0 messages, and reading them from a peer that may send anything.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Longest message in bytes that a client may send.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most requests in a batch: each may have a long answer, and all of them are one.
pub const BATCH_MAX: usize = 64;
/// Longest answer in bytes that a client of ours reads: lists may be long.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The data path refused the change; or the daemon is stopping, or has no room for another client.
pub const REFUSED: i32 = -32005;

/// Why a call failed, as its caller is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind: JSON-RPC's own codes, and those of [`Failure`]'s constructors.
    pub code: i32,
    /// One line for people.
    pub message: String,
}

impl Failure {
    /// What was read is no JSON.
    pub fn parse(message: impl Into<String>) -> Failure {
        Failure { code: -32700, message: message.into() }
    }

    /// JSON, but no request.
    pub fn request(message: impl Into<String>) -> Failure {
        Failure { code: -32600, message: message.into() }
    }

    /// No such method.
    pub fn method(name: &str) -> Failure {
        Failure { code: -32601, message: format!("there is no method `{name}`") }
    }

    /// Parameters that the method does not take.
    pub fn params(message: impl Into<String>) -> Failure {
        Failure { code: -32602, message: message.into() }
    }

    /// The subsystem, namespace, listener or host is not there.
    pub fn missing(message: impl Into<String>) -> Failure {
        Failure { code: -32001, message: message.into() }
    }

    /// It is there already, or in use.
    pub fn conflict(message: impl Into<String>) -> Failure {
        Failure { code: -32002, message: message.into() }
    }

    /// The volume cannot be opened, resized or flushed.
    pub fn volume(message: impl Into<String>) -> Failure {
        Failure { code: -32003, message: message.into() }
    }

    /// The change could not be saved and was not made.
    pub fn unsaved(message: impl Into<String>) -> Failure {
        Failure { code: -32004, message: message.into() }
    }

    /// The data path refused the change.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { code: REFUSED, message: message.into() }
    }
}

/// A request as a client writes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Always `2.0`.
    pub jsonrpc: String,
    /// What to do.
    pub method: String,
    /// With what: an object, or nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
    /// Which call the answer is for; a request without one is not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
}

/// An answer as a client reads it: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// Always `2.0`.
    pub jsonrpc: String,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The request's.
    pub id: Value,
}

impl Response {
    fn new(id: Value, outcome: Result<Value, Failure>) -> Response {
        let (result, error) = match outcome {
            Ok(value) => (Some(value), None),
            Err(failure) => (None, Some(failure)),
        };
        Response { jsonrpc: "2.0".to_owned(), result, error, id }
    }
}

/// The parameters of a method, by name; none are an empty object.
pub fn read<T: DeserializeOwned>(params: Value) -> Result<T, Failure> {
    let params = if params.is_null() { json!({}) } else { params };
    if !params.is_object() {
        return Err(Failure::params("`params` is no object"));
    }
    serde_json::from_value(params).map_err(|error| Failure::params(error.to_string()))
}

/// For a method that takes none.
pub fn none(params: &Value) -> Result<(), Failure> {
    match params {
        Value::Null => Ok(()),
        Value::Object(fields) if fields.is_empty() => Ok(()),
        _ => Err(Failure::params("takes no parameters")),
    }
}

/// Answers one message, a request or a batch of them; `None` when nothing is to be sent.
/// `call` carries out a method.
pub fn answer(
    message: Value,
    call: &mut dyn FnMut(&str, Value) -> Result<Value, Failure>,
) -> Option<Value> {
    let answer = match message {
        Value::Array(batch) if batch.is_empty() => {
            Some(Response::new(Value::Null, Err(Failure::request("the batch is empty"))))
        }
        Value::Array(batch) if batch.len() > BATCH_MAX => {
            let what = format!("a batch of {} requests: at most {BATCH_MAX}", batch.len());
            Some(Response::new(Value::Null, Err(Failure::request(what))))
        }
        Value::Array(batch) => {
            let answers: Vec<Response> =
                batch.into_iter().filter_map(|request| answer_one(request, call)).collect();
            return (!answers.is_empty()).then(|| value(&answers));
        }
        request => answer_one(request, call),
    };
    answer.map(|response| value(&response))
}

fn answer_one(
    request: Value,
    call: &mut dyn FnMut(&str, Value) -> Result<Value, Failure>,
) -> Option<Response> {
    let has_id = request.get("id").is_some();
    let id = request.get("id").cloned().unwrap_or(Value::Null);
    let wrong = |id: Value, what: String| Some(Response::new(id, Err(Failure::request(what))));
    if !matches!(id, Value::Null | Value::String(_) | Value::Number(_)) {
        return wrong(Value::Null, "`id` is no string and no number".to_owned());
    }
    let request: Request = match serde_json::from_value(request) {
        Ok(request) => request,
        Err(error) => return wrong(id, format!("not a request: {error}")),
    };
    if request.jsonrpc != "2.0" {
        return wrong(id, "`jsonrpc` is not \"2.0\"".to_owned());
    }
    let outcome = call(&request.method, request.params);
    has_id.then(|| Response::new(id, outcome))
}

/// The answer to what could not be read as JSON.
pub fn answer_unreadable(error: &serde_json::Error) -> Value {
    value(&Response::new(Value::Null, Err(Failure::parse(error.to_string()))))
}

/// What a client is told that is one too many.
pub fn answer_busy(clients: usize) -> Value {
    let what = format!("{clients} clients are connected already: try again when one has gone");
    value(&Response::new(Value::Null, Err(Failure::refused(what))))
}

fn value<T: Serialize>(message: &T) -> Value {
    serde_json::to_value(message).expect("messages are plain data")
}

/// The JSON values that a peer sends, each of bounded length.
pub struct Messages<R: Read> {
    values: serde_json::StreamDeserializer<'static, serde_json::de::IoRead<Bounded<R>>, Value>,
    budget: Rc<Cell<usize>>,
    bytes_max: usize,
}

struct Bounded<R> {
    inner: R,
    budget: Rc<Cell<usize>>,
    bytes_max: usize,
}

impl<R: Read> Messages<R> {
    /// Reads from `inner`, byte by byte: give a buffered reader.
    pub fn new(inner: R) -> Messages<R> {
        Messages::bounded(inner, MESSAGE_BYTES_MAX)
    }

    /// The same, each of at most so many bytes.
    pub fn bounded(inner: R, bytes_max: usize) -> Messages<R> {
        let budget = Rc::new(Cell::new(bytes_max));
        let bounded = Bounded { inner, budget: budget.clone(), bytes_max };
        let values = serde_json::Deserializer::from_reader(bounded).into_iter();
        Messages { values, budget, bytes_max }
    }
}

impl<R: Read> Iterator for Messages<R> {
    type Item = serde_json::Result<Value>;

    fn next(&mut self) -> Option<serde_json::Result<Value>> {
        self.budget.set(self.bytes_max);
        self.values.next()
    }
}

/// Whether a message was longer than any may be, and not the connection's fault.
pub fn is_too_long(error: &serde_json::Error) -> bool {
    error.io_error_kind() == Some(io::ErrorKind::InvalidData)
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = buffer.len().min(self.budget.get());
        if len == 0 {
            let text = format!("a message is longer than {} bytes", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let count = self.inner.read(&mut buffer[..len])?;
        self.budget.set(self.budget.get() - count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(method: &str, params: Value) -> Result<Value, Failure> {
        match method {
            "echo" => Ok(params),
            "fail" => Err(Failure::missing("gone")),
            other => Err(Failure::method(other)),
        }
    }

    fn ask(message: Value) -> Option<Value> {
        answer(message, &mut echo)
    }

    #[test]
    fn requests_are_answered_with_their_id() {
        let answer =
            ask(json!({"jsonrpc": "2.0", "method": "echo", "params": {"a": 1}, "id": "x"}));
        assert_eq!(answer, Some(json!({"jsonrpc": "2.0", "result": {"a": 1}, "id": "x"})));
        let answer = ask(json!({"jsonrpc": "2.0", "method": "fail", "id": 7}));
        assert_eq!(
            answer,
            Some(json!({"jsonrpc": "2.0", "error": {"code": -32001, "message": "gone"}, "id": 7}))
        );
    }

    #[test]
    fn a_notification_is_carried_out_and_not_answered() {
        let mut calls = 0;
        let mut call = |_: &str, params| {
            calls += 1;
            Ok(params)
        };
        assert_eq!(answer(json!({"jsonrpc": "2.0", "method": "echo"}), &mut call), None);
        assert_eq!(calls, 1);
    }

    #[test]
    fn parameters_have_names_and_may_be_left_out() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wanted {
            n: Option<u32>,
        }
        assert_eq!(read(Value::Null), Ok(Wanted { n: None }));
        assert_eq!(read(json!({})), Ok(Wanted { n: None }));
        assert_eq!(read(json!({"n": 1})), Ok(Wanted { n: Some(1) }));
        for wrong in [json!({"m": 1}), json!({"n": "1"}), json!([1]), json!(1)] {
            assert_eq!(read::<Wanted>(wrong.clone()).unwrap_err().code, -32602, "{wrong}");
        }
        assert_eq!(none(&Value::Null).and(none(&json!({}))), Ok(()));
        for wrong in [json!({"n": 1}), json!([]), json!(1)] {
            assert_eq!(none(&wrong).unwrap_err().code, -32602, "{wrong}");
        }
    }

    #[test]
    fn batches_are_answered_together() {
        let answers = ask(json!([
            {"jsonrpc": "2.0", "method": "echo", "params": [1], "id": 1},
            {"jsonrpc": "2.0", "method": "echo"},
            17,
        ]))
        .unwrap();
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0]["result"], json!([1]));
        assert_eq!(answers[1]["error"]["code"], -32600);
        assert_eq!(ask(json!([])).unwrap()["error"]["code"], -32600);
        let many = |count| ask(Value::Array(vec![json!(17); count])).unwrap();
        assert_eq!(many(BATCH_MAX).as_array().unwrap().len(), BATCH_MAX);
        assert_eq!(many(BATCH_MAX + 1)["error"]["code"], -32600);
    }

    #[test]
    fn what_is_no_request_gets_the_code_for_it() {
        for (message, code) in [
            (json!(1), -32600),
            (json!({"method": "echo", "id": 1}), -32600),
            (json!({"jsonrpc": "1.0", "method": "echo", "id": 1}), -32600),
            (json!({"jsonrpc": "2.0", "method": "echo", "id": [1]}), -32600),
            (json!({"jsonrpc": "2.0", "method": 1, "id": 1}), -32600),
            (json!({"jsonrpc": "2.0", "method": "nothing", "id": 1}), -32601),
        ] {
            assert_eq!(ask(message.clone()).unwrap()["error"]["code"], code, "{message}");
        }
    }

    #[test]
    fn messages_follow_each_other_with_or_without_white_space() {
        let text = "{\"a\":1}{\"b\":2}\n\n [3] {\"c\":";
        let mut messages = Messages::new(text.as_bytes());
        assert_eq!(messages.next().unwrap().unwrap(), json!({"a": 1}));
        assert_eq!(messages.next().unwrap().unwrap(), json!({"b": 2}));
        assert_eq!(messages.next().unwrap().unwrap(), json!([3]));
        assert!(messages.next().unwrap().is_err());
        assert!(messages.next().is_none());
    }

    #[test]
    fn a_message_without_end_is_given_up() {
        let endless = io::Read::chain(&b"{\"a\":\""[..], io::repeat(b'x'));
        let error = Messages::new(endless).next().unwrap().unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
        // The bound is per message, not for all of them.
        let many = format!("{} {}", "[1]".repeat(MESSAGE_BYTES_MAX / 3), "[2]");
        assert!(Messages::new(many.as_bytes()).all(|message| message.is_ok()));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(Messages::new(deep.as_bytes()).next().unwrap().is_err());
    }
}

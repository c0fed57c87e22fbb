//! The other end of the control socket.

use super::protocol::{ANSWER_BYTES_MAX, Failure, Messages, Request, Response};
use serde_json::Value;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take, unless another time is asked for: opening a volume and taking one away take seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    answers: Messages<BufReader<UnixStream>>,
    calls: u64,
    /// Zero: for ever.
    patience: Duration,
}

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens at the socket.
    #[error("{path}: {source}; is `nvlane serve` running? (--socket PATH for another one)")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Nothing came for as long as was waited.
    #[error("{path}: no answer within {} s: the daemon hangs, or is at work on this still", patience.as_secs_f64())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// For how long.
        patience: Duration,
    },
    /// The conversation broke.
    #[error("{path}: {problem}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// How.
        problem: String,
    },
    /// What was answered is no answer.
    #[error("{path}: {problem}")]
    Nonsense {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The daemon answered with an error.
    #[error("{0}")]
    Failed(Failure),
}

impl Client {
    /// Connects to the daemon whose socket is at `path`; an answer may take [`PATIENCE`].
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let connect = || {
            path.parent().map_or(Ok(()), super::path::check_owner)?;
            let stream = UnixStream::connect(path)?;
            let reader = BufReader::new(stream.try_clone()?);
            Ok((stream, reader))
        };
        let (stream, reader) =
            connect().map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        let answers = Messages::bounded(reader, ANSWER_BYTES_MAX);
        let client =
            Client { path: path.to_owned(), stream, answers, calls: 0, patience: Duration::ZERO };
        Ok(client.patient_for(PATIENCE))
    }

    /// The same with answers that take no longer than that: a call fails that waits in vain. Zero: for ever.
    pub fn patient_for(mut self, patience: Duration) -> Client {
        let limit = (!patience.is_zero()).then_some(patience);
        // Both ends of the stream are one socket.
        self.stream.set_read_timeout(limit).expect("a limit is not zero");
        self.stream.set_write_timeout(limit).expect("a limit is not zero");
        self.patience = patience;
        self
    }

    /// Calls a method and waits for what comes of it.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        self.calls += 1;
        let id = Value::from(self.calls);
        let request = Request {
            jsonrpc: "2.0".to_owned(),
            method: method.to_owned(),
            params,
            id: Some(id.clone()),
        };
        let mut text = serde_json::to_vec(&request).expect("a request is plain data");
        text.push(b'\n');
        // Whoever turns us away says why before hanging up.
        let sent = self.stream.write_all(&text);
        let answer = match self.answers.next() {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if error.io_error_kind() == Some(io::ErrorKind::WouldBlock) => {
                return Err(ClientError::Silent {
                    path: self.path.clone(),
                    patience: self.patience,
                });
            }
            _ if sent.is_err() => {
                return Err(self.broken(sent.expect_err("just seen").to_string()));
            }
            Some(Err(error)) if error.is_io() || error.is_eof() => {
                return Err(self.broken(error.to_string()));
            }
            Some(Err(error)) => return Err(self.nonsense(error.to_string())),
            None => return Err(self.broken("the daemon hung up".to_owned())),
        };
        let response: Response = serde_json::from_value(answer)
            .map_err(|error| self.nonsense(format!("no JSON-RPC answer: {error}")))?;
        match (response.error, response.result) {
            (Some(failure), _) => Err(ClientError::Failed(failure)),
            (None, result) if response.id == id => Ok(result.unwrap_or(Value::Null)),
            (None, _) => Err(self.nonsense(format!("an answer to call {}, not {id}", response.id))),
        }
    }

    fn broken(&self, problem: String) -> ClientError {
        ClientError::Broken { path: self.path.clone(), problem }
    }

    fn nonsense(&self, problem: String) -> ClientError {
        ClientError::Nonsense { path: self.path.clone(), problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::unix::net::UnixListener;

    /// Thousands of volumes or controllers.
    #[test]
    fn an_answer_may_be_longer_than_a_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let text = "x".repeat(4 << 20);
            write!(stream, "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{text}\"}}").unwrap();
        });
        let said = Client::connect(&path).unwrap().call("volume_list", Value::Null).unwrap();
        assert_eq!(said.as_str().unwrap().len(), 4 << 20);
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _silent = UnixListener::bind(&path).unwrap();
        let client = Client::connect(&path).unwrap();
        let said = client.patient_for(Duration::from_millis(20)).call("stats", Value::Null);
        assert!(matches!(said, Err(ClientError::Silent { .. })));
    }
}

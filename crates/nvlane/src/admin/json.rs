//! How JSON leaves the command line: one object, with the version of its description.

use serde_json::{Map, Value};

/// Version of docs/cli-json.md. Fields may be added within a version; what is there keeps its name,
/// type and meaning.
pub const SCHEMA_VERSION: u64 = 1;

/// An object with the version in it.
pub fn object(mut fields: Map<String, Value>) -> Value {
    fields.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    Value::Object(fields)
}

/// The text of [`object`].
pub fn write(fields: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", object(fields)).into_bytes()
}

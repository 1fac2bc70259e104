//! Makes the description of the API, OpenAPI 3.1, of the declaration in `operations`, and holds
//! `openapi.json` to it. In tests alone: all schemas would be a fiftieth of the command.

use outboard_pool::{Uuid, api::PoolError};
use schemars::{JsonSchema as _, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::operations::{Form, Operation, Role};

/// Place of the schemas that others refer to.
const SCHEMAS: &str = "/components/schemas";

/// Returns the whole document.
fn document() -> Value {
    let mut schemas = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = SCHEMAS.into())
        .into_generator();
    let refusal = json!({
        "description": "Refused: `error` says of which kind the reason is, `text` what it is",
        "content": { "application/json": { "schema": schemas.subschema_for::<PoolError>() } },
    });
    let mut paths = Map::new();
    for operation in Operation::ALL {
        let path = paths
            .entry(operation.template())
            .or_insert_with(|| json!({}));
        let method = operation.method().to_lowercase();
        path[method] = described(*operation, &mut schemas, &refusal);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Outboard pool",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "GPUs of many machines, given out and taken back. Requests can be \
                repeated. A manager that does not lead answers 421, one that cannot say 503.",
            "license": { "name": "Apache-2.0 OR MIT" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {
                "password": { "type": "http", "scheme": "basic",
                    "description": "The token as the password, for browsers: GET alone" },
                "token": { "type": "http", "scheme": "bearer",
                    "description": "A token of `outboard token create`, if the manager has --tokens" },
            },
        },
    })
}

fn described(operation: Operation, schemas: &mut SchemaGenerator, refusal: &Value) -> Value {
    let role = match operation.role() {
        Role::Public => "No token is needed.",
        Role::Reader => "Any token will do.",
        Role::Holder => {
            "Tokens of holders, for their own leases, and of operators (`operator.NAME`)."
        }
        Role::Box => "The token `box.NAME` of the box that the request is about.",
        Role::Form => "The form has the token of an operator, if the manager asks for tokens.",
        Role::Operator => "Tokens of operators (`operator.NAME`).",
    };
    let mut parameters: Vec<Value> = names(operation)
        .map(|name| path_parameter(name, schemas))
        .collect();
    let status = match operation.says() {
        Form::Redirect => "303",
        _ => "200",
    };
    let mut described = json!({
        "operationId": operation.id(),
        "summary": operation.about(),
        "description": role,
        "responses": {
            status: {
                "description": "Done",
                "content": { operation.says().kind(): { "schema": operation.answer_schema(schemas) } },
            },
            "default": refusal,
        },
        "security": match (operation.role(), operation.method()) {
            (Role::Form | Role::Public, _) => json!([{}]),
            (_, "GET") => json!([{}, { "token": [] }, { "password": [] }]),
            _ => json!([{}, { "token": [] }]),
        },
    });
    let asks = operation.asks();
    if asks == Form::Query {
        let schema = operation.request_schema(schemas).to_value();
        parameters.extend(query_parameters(&schema));
    } else if asks != Form::Nothing {
        let schema = operation.request_schema(schemas);
        described["requestBody"] = json!({
            "required": true,
            "content": { asks.kind(): { "schema": schema } },
        });
    }
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    described
}

/// Returns the parts of a path that name something.
fn names(operation: Operation) -> impl Iterator<Item = &'static str> {
    let parts = operation.template().split('/');
    parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &str, schemas: &mut SchemaGenerator) -> Value {
    let schema = match name {
        "lease" => u64::json_schema(schemas),
        "uuid" => schemas.subschema_for::<Uuid>(),
        _ => String::json_schema(schemas),
    };
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

fn query_parameters(schema: &Value) -> Vec<Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let fields = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let parameter = |(name, mut schema): (String, Value)| {
        let about = schema
            .as_object_mut()
            .and_then(|schema| schema.remove("description"));
        json!({
            "name": name,
            "in": "query",
            "required": required.contains(&Value::String(name.clone())),
            "description": about.unwrap_or_default(),
            "schema": schema,
        })
    };
    fields.into_iter().map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file is written with `OUTBOARD_GOLDEN=write`.
    #[test]
    fn the_file_is_what_is_declared() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi.json");
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("OUTBOARD_GOLDEN").is_some() {
            std::fs::write(path, text).unwrap();
            return;
        }
        let served = crate::openapi::document().unwrap();
        assert!(
            served == text.as_bytes(),
            "openapi.json is another: OUTBOARD_GOLDEN=write writes it"
        );
    }

    #[test]
    fn each_operation_is_described_once() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let mut ids = std::collections::BTreeSet::new();
        for (path, methods) in paths {
            for (method, described) in methods.as_object().unwrap() {
                let id = described["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{id} twice");
                let found = Operation::find(&method.to_uppercase(), path).unwrap().0;
                assert_eq!(found.id(), id);
            }
        }
        assert_eq!(ids.len(), Operation::ALL.len());
    }

    /// Every reference leads somewhere, and nothing is there that nobody refers to.
    #[test]
    fn references_and_schemas_agree() {
        let document = document();
        let mut used = std::collections::BTreeSet::new();
        collect(&document, &mut used);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let there = schemas.keys().map(|name| format!("#{SCHEMAS}/{name}"));
        assert_eq!(used, there.collect());
    }

    fn collect(value: &Value, to: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    to.insert(reference.clone());
                }
                fields.values().for_each(|value| collect(value, to));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, to)),
            _ => {}
        }
    }
}

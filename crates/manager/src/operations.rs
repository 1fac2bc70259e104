//! The manager's HTTP API, declared once: routes, roles, the commands' paths and
//! `GET /openapi.json` come from here.

use std::{fmt::Display, marker::PhantomData};

use outboard_pool::{
    AuditFilter, Uuid,
    api::{
        AuditView, BoxAnswer, Changes, Claimed, Held, HistoryView, Join, LeaseView, PoolError,
        PoolView, QuotasView, Report, SparesView, Tables,
    },
    record::{Claim, Same, SpareRecord},
};
#[cfg(test)]
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _, Visitor},
};
use serde_json::{Map, Value};

use crate::document::Strict;

/// Those who may ask for an operation, if the manager asks for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everyone: it says nothing of the pool.
    Public,
    /// Everyone who has a token.
    Reader,
    /// Those who claim, and operators.
    Holder,
    /// The box that the request is about.
    Box,
    Operator,
    /// Operators, whose token is in the form itself.
    Form,
}

/// Form of a request or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Nothing,
    /// Parameters after `?`.
    Query,
    Json,
    /// Fields of a form in a page.
    Fields,
    /// Text for Prometheus.
    Metrics,
    Html,
    Script,
    Style,
    /// The way back to the page.
    Redirect,
}

impl Form {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Form::Nothing | Form::Query | Form::Json => "application/json",
            Form::Fields => "application/x-www-form-urlencoded",
            Form::Html | Form::Redirect => "text/html; charset=utf-8",
            Form::Script => "text/javascript; charset=utf-8",
            Form::Style => "text/css; charset=utf-8",
            Form::Metrics => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

macro_rules! operations {
    ($(
        #[doc = $about:literal]
        $name:ident($id:literal): $method:ident $path:literal, $role:ident,
            $asks:ident($request:ty) => $says:ident($answer:ty);
    )*) => {
        /// A request that the manager answers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation {
            $(#[doc = $about] $name,)*
        }

        impl Operation {
            pub const ALL: &[Operation] = &[$(Operation::$name,)*];

            /// Returns one line about it, which is that of the command, too.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Operation::$name => $about.trim_ascii(),)*
                }
            }

            #[cfg_attr(not(test), expect(dead_code, reason = "the description alone needs it"))]
            pub(crate) fn id(self) -> &'static str {
                match self {
                    $(Operation::$name => $id,)*
                }
            }

            pub(crate) fn method(self) -> &'static str {
                match self {
                    $(Operation::$name => stringify!($method),)*
                }
            }

            pub(crate) fn template(self) -> &'static str {
                match self {
                    $(Operation::$name => $path,)*
                }
            }

            pub(crate) fn role(self) -> Role {
                match self {
                    $(Operation::$name => Role::$role,)*
                }
            }

            #[cfg_attr(not(test), expect(dead_code, reason = "the description alone needs it"))]
            pub(crate) fn asks(self) -> Form {
                match self {
                    $(Operation::$name => Form::$asks,)*
                }
            }

            pub(crate) fn says(self) -> Form {
                match self {
                    $(Operation::$name => Form::$says,)*
                }
            }

            #[cfg(test)]
            pub(crate) fn request_schema(self, to: &mut SchemaGenerator) -> Schema {
                match self {
                    $(Operation::$name => <$request>::json_schema(to),)*
                }
            }

            #[cfg(test)]
            pub(crate) fn answer_schema(self, to: &mut SchemaGenerator) -> Schema {
                match self {
                    $(Operation::$name => to.subschema_for::<$answer>(),)*
                }
            }
        }

        // Their schemas are made in tests alone.
        $(const _: PhantomData<($request, $answer)> = PhantomData;)*
    };
}

operations! {
    /// Show boxes, GPUs, leases and waiting claims
    List("list"): GET "/v1/pool", Reader, Nothing(()) => Json(PoolView);
    /// Wait for changes after a revision: each object that has changed, as it is now
    Watch("watch"): GET "/v1/watch", Reader, Query(WatchRequest) => Json(Changes);
    /// Show the mapping tables of hosts and boxes
    Tables("tables"): GET "/v1/tables", Reader, Nothing(()) => Json(Tables);
    /// Take GPUs without a program, for as long as the term is
    Claim("claim"): POST "/v1/claims", Holder, Json(ClaimRequest) => Json(Claimed);
    /// Show a lease, over or not
    Lease("lease"): GET "/v1/leases/{lease}", Reader, Nothing(()) => Json(LeaseView);
    /// Give a lease's GPUs back: its programs lose them
    Release("release"): POST "/v1/leases/{lease}/release", Holder, Nothing(()) => Json(LeaseView);
    /// Renew a lease, and wait for news of its GPUs
    Hold("hold"): POST "/v1/leases/{lease}/hold", Holder, Json(HoldRequest) => Json(Held);
    /// Show a lease's grants as they are now
    Grants("grants"): POST "/v1/leases/{lease}/grants", Holder, Nothing(()) => Json(Claimed);
    /// Report that a box does not admit the program of a lease
    Failed("failed"): POST "/v1/leases/{lease}/failed", Holder, Json(FailedRequest) => Json(LeaseView);
    /// Stop giving out the GPUs of a box; leases stay
    Drain("drain"): POST "/v1/boxes/{box}/drain", Operator, Json(ReasonRequest) => Json(Done);
    /// Forget a box without leases, whose GPUs others may have then
    Forget("forget"): POST "/v1/boxes/{box}/forget", Operator, Nothing(()) => Json(Done);
    /// Stop giving out one GPU; its lease stays
    Taint("taint"): POST "/v1/gpus/{uuid}/taint", Operator, Json(TaintRequest) => Json(Done);
    /// Take an attached GPU from its host when no program uses it any more
    Detach("detach"): POST "/v1/gpus/{uuid}/detach", Operator, Json(DetachRequest) => Json(LeaseView);
    /// Bound the GPUs that a holder has at a time
    Quota("quota"): POST "/v1/quotas/{owner}", Operator, Json(QuotaRequest) => Json(Done);
    /// Show the bounds of holders, and what they have
    Quotas("quotas"): GET "/v1/quotas", Reader, Nothing(()) => Json(QuotasView);
    /// Hold GPUs back, to take the place of broken ones
    SetSpares("set_spares"): POST "/v1/spares", Operator, Json(SparesRequest) => Json(Done);
    /// Show the GPUs that are held back, and the rules about them
    Spares("spares"): GET "/v1/spares", Reader, Nothing(()) => Json(SparesView);
    /// Show what was given to whom and taken back, and what operators did
    Audit("audit"): GET "/v1/audit", Reader, Query(AuditRequest) => Json(AuditView);
    /// Show numbers of free, leased and fragmented GPUs over time
    History("history"): GET "/v1/history", Reader, Nothing(()) => Json(HistoryView);
    /// Begin as a box of the pool
    Join("join"): POST "/v1/boxes/join", Box, Json(Join) => Json(BoxAnswer);
    /// Report as a box, and wait for news
    Report("report"): POST "/v1/boxes/report", Box, Json(Report) => Json(BoxAnswer);
    /// Say that this manager leads; others answer 421
    Leader("leader"): GET "/v1/leader", Reader, Nothing(()) => Json(LeaderAnswer);
    /// Describe these operations
    Openapi("openapi"): GET "/openapi.json", Reader, Nothing(()) => Json(Value);
    /// Show numbers for Prometheus
    Metrics("metrics"): GET "/metrics", Reader, Nothing(()) => Metrics(String);
    /// Show the pool to people
    Page("page"): GET "/", Reader, Nothing(()) => Html(String);
    /// Follow the pool's changes in the page
    PageScript("page_script"): GET "/page.js", Public, Nothing(()) => Script(String);
    /// Show the rows of the page that have changed after a revision
    PageRows("page_rows"): GET "/page/rows", Reader, Query(RowsRequest) => Json(PageChanges);
    /// Give the page its looks
    PageStyle("page_style"): GET "/page.css", Public, Nothing(()) => Style(String);
    /// Drain a box from the page, or end that
    PageDrain("page_drain"): POST "/page/drain", Form, Fields(DrainForm) => Redirect(String);
}

/// A claim, as clients send it.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimRequest {
    #[serde(deserialize_with = "known_claim")]
    pub(crate) claim: Claim,
    /// True to wait for GPUs, for some seconds each time that the claim is sent.
    #[serde(default)]
    pub(crate) wait: bool,
}

/// The changes that a client wants to know.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchRequest {
    /// Revision of a list, or of the watch before.
    pub(crate) after: String,
    /// Time after which the answer comes without a change; the manager has a limit of its own.
    pub(crate) wait_ms: Option<u64>,
}

/// The changes that the page shows next.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct RowsRequest {
    /// Revision of the page, or of the answer before.
    pub(crate) after: String,
}

/// The entries of the audit that a client wants to know.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditRequest {
    /// Number of the entry after which they begin: that of the answer before.
    pub(crate) after: Option<u64>,
    /// Only entries that name this GPU.
    pub(crate) gpu: Option<Uuid>,
    /// Only entries of this holder.
    pub(crate) holder: Option<String>,
    /// Only entries of this time and later, in seconds since 1970.
    pub(crate) since_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasonRequest {
    /// Without a reason the GPUs are given out again.
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TaintRequest {
    /// Without a reason the GPU is given out again, and counts as healthy.
    pub(crate) reason: Option<String>,
    /// True if the GPU is broken: a spare takes its place.
    #[serde(default)]
    pub(crate) broken: bool,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DetachRequest {
    /// True to end the sessions of the GPU now.
    #[serde(default)]
    pub(crate) force: bool,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldRequest {
    /// As of the last answer.
    #[serde(default)]
    pub(crate) news: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct FailedRequest {
    #[serde(rename = "box")]
    pub(crate) of: String,
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaRequest {
    /// Without a number there is no bound.
    pub(crate) gpus: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SparesRequest {
    model: Option<String>,
    per: Option<Same>,
    /// Number of GPUs; 0 removes the rule.
    gpus: u32,
}

impl From<SparesRequest> for SpareRecord {
    fn from(asked: SparesRequest) -> SpareRecord {
        let SparesRequest { model, per, gpus } = asked;
        SpareRecord { model, per, gpus }
    }
}

/// Changes of the page after a revision.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct PageChanges {
    /// Place from which the next question goes on.
    pub(crate) revision: String,
    /// True if more have changed: ask again at once.
    pub(crate) more: bool,
    pub(crate) rows: Vec<PageRow>,
    /// Sections that have few rows, whole.
    pub(crate) sections: Vec<PageSection>,
}

/// A row that has changed, as it is now.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct PageRow {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    /// Its markup; `null`: it is no longer there.
    pub(crate) html: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct PageSection {
    pub(crate) section: &'static str,
    /// Markup of what is in it.
    pub(crate) html: String,
}

/// The page's form.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainForm {
    #[serde(rename = "box")]
    pub(crate) of: String,
    pub(crate) action: DrainAction,
    #[serde(default)]
    pub(crate) reason: String,
    /// An operator's token, if the manager asks for tokens.
    #[serde(default)]
    pub(crate) token: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum DrainAction {
    Drain,
    Undrain,
}

impl DrainForm {
    pub(crate) fn of(body: &[u8]) -> Result<DrainForm, PoolError> {
        let wrong = |text: String| PoolError::Wrong(text);
        let text = std::str::from_utf8(body).map_err(|error| wrong(error.to_string()))?;
        let fields = Value::Object(fields(text)?);
        serde_json::from_value(fields).map_err(|error| wrong(error.to_string()))
    }
}

/// Answer of what has no other.
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Done {}

#[cfg_attr(test, derive(JsonSchema))]
#[expect(dead_code, reason = "it is a schema")]
pub(crate) struct LeaderAnswer {
    incarnation: u64,
}

/// Reads a claim that has no field that is unknown: a wish that is misspelt is not left out.
fn known_claim<'de, D: Deserializer<'de>>(from: D) -> Result<Claim, D::Error> {
    let mut known = FieldsOf(&[]);
    // It stops once it has them.
    let _ = Claim::deserialize(&mut known);
    let fields = Map::deserialize(from)?;
    if let Some(field) = fields
        .keys()
        .find(|field| !known.0.contains(&field.as_str()))
    {
        let field: String = field.chars().take(64).collect();
        return Err(D::Error::custom(format!("a claim has no field {field:?}")));
    }
    Claim::deserialize(Strict(Value::Object(fields))).map_err(D::Error::custom)
}

/// Names of the fields of a type, as its declaration tells them to what it is read from.
struct FieldsOf(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut FieldsOf {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("only fields are asked for"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A request's operation, and the parts of its path that name something.
pub(crate) type Found = (Operation, Vec<String>);

impl Operation {
    /// Returns the path of a request, with the names for its parts in braces, which are encoded.
    pub fn path(self, names: &[&dyn Display]) -> String {
        let mut names = names.iter();
        let part = |part: &str| match part.starts_with('{') {
            true => names
                .next()
                .map_or(String::new(), |name| encode(&name.to_string())),
            false => part.into(),
        };
        let parts: Vec<String> = self.template().split('/').map(part).collect();
        parts.join("/")
    }

    /// Returns the path of a question about the audit.
    pub fn audit_path(filter: &AuditFilter) -> String {
        let mut path = format!("{}?after={}", Operation::Audit.path(&[]), filter.after);
        if let Some(gpu) = &filter.gpu {
            path.push_str(&format!("&gpu={gpu}"));
        }
        if let Some(holder) = &filter.holder {
            path.push_str(&format!("&holder={}", encode(holder)));
        }
        path + &format!("&since_s={}", filter.since_s)
    }

    /// Returns the operation of a method and a path without its query.
    pub(crate) fn find(method: &str, path: &str) -> Result<Found, PoolError> {
        let parts = path.split('/').map(decode).collect::<Option<Vec<_>>>();
        let parts = parts.unwrap_or_default();
        let names_of = |operation: &Operation| {
            let template = operation.template().split('/');
            let mut names = Vec::new();
            if template.clone().count() != parts.len() {
                return None;
            }
            for (wanted, part) in template.zip(&parts) {
                match wanted.starts_with('{') {
                    true if !part.is_empty() => names.push(part.clone()),
                    _ if wanted == part => {}
                    _ => return None,
                }
            }
            Some((*operation, names))
        };
        let all = Operation::ALL.iter();
        // What has no names comes first: /v1/boxes/join is no box's.
        let mut found = all.filter(|it| it.method() == method).filter_map(names_of);
        let found = found.by_ref().min_by_key(|(_, names)| names.len());
        found.ok_or_else(|| {
            let path: String = path.chars().take(100).collect();
            PoolError::Unknown(format!("there is no {method} {path}"))
        })
    }
}

/// Encodes what has a meaning in a path, or in a request's line.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Decodes `%41` and the like; `None` if that is no text.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// Decodes the fields of a query or a form. A field that comes twice is an error.
pub(crate) fn fields(text: &str) -> Result<Map<String, Value>, PoolError> {
    let mut fields = Map::new();
    for field in text.split('&').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let plain = |text: &str| decode(&text.replace('+', " "));
        let (Some(name), Some(value)) = (plain(name), plain(value)) else {
            return Err(PoolError::Wrong("a field is no text".into()));
        };
        if fields.insert(name, Value::String(value)).is_some() {
            return Err(PoolError::Wrong("a field comes twice".into()));
        }
    }
    Ok(fields)
}

/// Reads a query, some of whose fields are numbers.
fn of_query<T: DeserializeOwned>(query: &str, numbers: &[&str]) -> Result<T, PoolError> {
    let mut fields = fields(query)?;
    for name in numbers {
        if let Some(Value::String(text)) = fields.get(*name) {
            let number = text.parse::<u64>();
            let number = number.map_err(|_| PoolError::Wrong(format!("{name} is no number")))?;
            fields.insert((*name).into(), number.into());
        }
    }
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| PoolError::Wrong(error.to_string()))
}

impl WatchRequest {
    pub(crate) fn of(query: &str) -> Result<WatchRequest, PoolError> {
        of_query(query, &["wait_ms"])
    }
}

impl RowsRequest {
    pub(crate) fn of(query: &str) -> Result<RowsRequest, PoolError> {
        of_query(query, &[])
    }
}

impl AuditRequest {
    pub(crate) fn of(query: &str) -> Result<AuditFilter, PoolError> {
        let AuditRequest {
            after,
            gpu,
            holder,
            since_s,
        } = of_query(query, &["after", "since_s"])?;
        Ok(AuditFilter {
            after: after.unwrap_or(0),
            gpu,
            holder,
            since_s: since_s.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_found_by_its_own_path_alone() {
        for operation in Operation::ALL {
            let path = operation.path(&[&"x/y@z %\r\n"]);
            let (found, names) = Operation::find(operation.method(), &path).unwrap();
            assert_eq!(found, *operation);
            let has_name = operation.template().contains('{');
            assert_eq!(
                names,
                if has_name {
                    vec!["x/y@z %\r\n"]
                } else {
                    vec![]
                }
            );
            for wrong in [
                format!("{path}/"),
                format!("/{path}"),
                path.replace('/', ""),
            ] {
                let found = Operation::find(operation.method(), &wrong);
                assert!(found.is_err(), "{wrong}");
            }
            assert!(Operation::find("DELETE", &path).is_err());
        }
        for wrong in [
            "/v1/boxes//drain",
            "/v1/boxes/%/drain",
            "/v1/boxes/%ff/drain",
            "",
            "*",
        ] {
            assert!(Operation::find("POST", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields_of_queries() {
        let asked = WatchRequest::of("after=1-2&wait_ms=5").unwrap();
        assert_eq!((asked.after.as_str(), asked.wait_ms), ("1-2", Some(5)));
        assert_eq!(fields("a=b+c%26").unwrap()["a"], "b c&");
        for wrong in [
            "",
            "after",
            "after=1&after=2",
            "after=%",
            "after=%+1",
            "after=%FF",
            "after=1&more=2",
            "after=1&wait_ms=-1",
            "after=1&wait_ms=",
        ] {
            let asked = WatchRequest::of(wrong);
            assert!(asked.is_err() || wrong == "after", "{wrong}");
        }
        let gpu = Uuid([7; 16]);
        let asked = AuditFilter {
            after: 2,
            gpu: Some(gpu),
            holder: Some("a&gpu=1".into()),
            since_s: 5,
        };
        let path = Operation::audit_path(&asked);
        let (path, query) = path.split_once('?').unwrap();
        assert_eq!(Operation::find("GET", path).unwrap().0, Operation::Audit);
        assert_eq!(AuditRequest::of(query), Ok(asked));
        assert!(AuditRequest::of("").is_ok());
        for wrong in ["after=x", "after=-1", "gpu=x", "since=1", "since_s="] {
            assert!(AuditRequest::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn claims_have_no_unknown_fields() {
        let read =
            |claim: &str| serde_json::from_str::<ClaimRequest>(&format!(r#"{{"claim":{claim}}}"#));
        let claim = read(r#"{"uid":"a","host":"h","gpus":1}"#).unwrap().claim;
        assert_eq!((claim.owner.as_str(), claim.term_ms), ("", 30_000));
        let error = read(r#"{"uid":"a","host":"h","gpus":1,"sane":"nvlink"}"#).unwrap_err();
        assert!(error.to_string().contains(r#"no field "sane""#), "{error}");
        assert!(read(r#"{"uid":"a","host":"h","gpus":-1}"#).is_err());
    }
}

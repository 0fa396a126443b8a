//! Finds the requests that change something, and names them.

use http::Method;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The methods of vCenter's API that change something outside of the caller's session.
const CHANGES: [&str; 11] = [
    "EnterMaintenanceMode_Task",
    "ExitMaintenanceMode_Task",
    "PowerOffVM_Task",
    "PowerOnVM_Task",
    "PowerOnMultiVM_Task",
    "RelocateVM_Task",
    "MigrateVM_Task",
    "ReconfigVM_Task",
    "ShutdownGuest",
    "ResetVM_Task",
    "CancelTask",
];

/// Kinds whose creation is a query and stores nothing.
const QUESTIONS: [&str; 6] = [
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "selfsubjectreviews",
    "subjectaccessreviews",
    "localsubjectaccessreviews",
    "tokenreviews",
];

/// Names a request to the API server that changes something, `PATCH nodes/gpu-1`; `None` for all others.
pub(super) fn kubernetes(method: &Method, path: &str) -> Option<String> {
    if ![Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method) {
        return None;
    }
    let segments: Vec<&str> = path.split('/').filter(|it| !it.is_empty()).collect();
    let object = object(&segments);
    if object.first().is_some_and(|kind| QUESTIONS.contains(kind)) {
        return None;
    }
    // Events are written concurrently and would make the numbers of requests random.
    if object.first() == Some(&"events") {
        return None;
    }
    // Leases are renewed concurrently, and a held renewal would depose the leader. Use [`super::FaultProxy::cut`] for
    // that.
    if object.first() == Some(&"leases") {
        return None;
    }
    // NodeMaintenances are written concurrently, several changes in one.
    if object.first() == Some(&"nodemaintenances") {
        return None;
    }
    Some(format!("{method} {}", object.join("/")))
}

/// Resource, name and subresource in the segments of a path.
fn object<'s, 'p>(segments: &'s [&'p str]) -> &'s [&'p str] {
    let rest = match segments {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        other => other,
    };
    match rest {
        // Subresources of a namespace are at the place of the resource.
        ["namespaces", _, "status" | "finalize"] => rest,
        ["namespaces", _namespace, object @ ..] if !object.is_empty() => object,
        other => other,
    }
}

/// Verb and resource of a request to the API server, without names: `PATCH nodes`, `POST pods/eviction`, `WATCH pods`.
pub(crate) fn kind(method: &str, target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments: Vec<&str> = path.split('/').filter(|it| !it.is_empty()).collect();
    let (resource, is_named) = match object(&segments) {
        [resource, _name, subresource, ..] => (format!("{resource}/{subresource}"), true),
        [resource, _name] => ((*resource).to_owned(), true),
        other => (other.join("/"), false),
    };
    let verb = match method {
        "GET" if query.split('&').any(|it| it == "watch=true" || it == "watch=1") => "WATCH",
        "GET" if !is_named => "LIST",
        other => other,
    };
    format!("{verb} {resource}")
}

/// The method of a SOAP request; `None` for invalid ones.
pub(crate) fn soap_method(body: &[u8]) -> Option<String> {
    let mut reader = Reader::from_str(std::str::from_utf8(body).ok()?);
    while next_element(&mut reader)? != "Body" {}
    next_element(&mut reader)
}

/// Names a SOAP request that changes something, `PowerOffVM_Task vm-42`; `None` for all others and for invalid ones.
pub(super) fn vcenter(body: &[u8]) -> Option<String> {
    let mut reader = Reader::from_str(std::str::from_utf8(body).ok()?);
    while next_element(&mut reader)? != "Body" {}
    let method = next_element(&mut reader)?;
    if !CHANGES.contains(&method.as_str()) {
        return None;
    }
    // `_this` is the first element of the method.
    if next_element(&mut reader).as_deref() == Some("_this")
        && let Ok(Event::Text(this)) = reader.read_event()
    {
        return Some(format!("{method} {}", this.trim()));
    }
    Some(method)
}

/// The name of the next element; `None` at the end and for invalid XML.
fn next_element(reader: &mut Reader<&[u8]>) -> Option<String> {
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) | Event::Empty(start) => return Some(local_name(&start)),
            Event::Eof => return None,
            Event::End(_)
            | Event::Text(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_)
            | Event::GeneralRef(_) => {}
        }
    }
}

fn local_name(start: &BytesStart<'_>) -> String {
    start.local_name().as_ref().to_owned()
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{kubernetes, vcenter};

    #[test]
    fn kubernetes_requests_are_named_by_what_they_change() {
        for (method, path, name) in [
            (Method::PATCH, "/api/v1/nodes/gpu-1", Some("PATCH nodes/gpu-1")),
            (
                Method::POST,
                "/api/v1/namespaces/ml/pods/train-0/eviction",
                Some("POST pods/train-0/eviction"),
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/haulout/leases/haulout",
                None,
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/ml",
                Some("DELETE namespaces/ml"),
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/ml/finalize",
                Some("PUT namespaces/ml/finalize"),
            ),
            (Method::GET, "/api/v1/nodes/gpu-1", None),
            (
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/default/events",
                None,
            ),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                None,
            ),
            (
                Method::POST,
                "/apis/authorization.k8s.io/v1/namespaces/ml/localsubjectaccessreviews",
                None,
            ),
        ] {
            assert_eq!(kubernetes(&method, path).as_deref(), name, "{method} {path}");
        }
    }

    #[test]
    fn soap_requests_are_named_by_method_and_object() {
        for (body, name) in [
            (
                r#"<?xml version="1.0"?><soapenv:Envelope xmlns:soapenv="e"><soapenv:Header><operationID>Body</operationID></soapenv:Header><soapenv:Body><PowerOffVM_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-42</_this></PowerOffVM_Task></soapenv:Body></soapenv:Envelope>"#,
                Some("PowerOffVM_Task vm-42"),
            ),
            (
                "<E:Envelope xmlns:E='e'>\n<E:Body>\n<v:CancelTask xmlns:v='urn:vim25'>\n<v:_this type='Task'> task-7 </v:_this></v:CancelTask></E:Body></E:Envelope>",
                Some("CancelTask task-7"),
            ),
            (
                "<Envelope><Body><RetrievePropertiesEx><_this>PowerOffVM_Task</_this></RetrievePropertiesEx></Body></Envelope>",
                None,
            ),
            ("PowerOffVM_Task", None),
            ("", None),
        ] {
            assert_eq!(vcenter(body.as_bytes()).as_deref(), name, "{body}");
        }
    }
}

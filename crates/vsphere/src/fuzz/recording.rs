//! What the decoders make of one recorded reply.

use std::collections::BTreeMap;

use crate::decode;
use crate::error::chain;
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{
    Change, ObjectProperties, PARTIAL_MAINTENANCE, Unreadable, Value, is_of_dead_session, read_page,
    read_update_set,
};
use crate::session;
use crate::soap::{self, ReplyError, SoapAnswer, read_answer};
use crate::survey::hardware;
use crate::task;
use crate::text::for_people;
use crate::xml::{self, Element, KnownNamespace};

/// A recorded reply, as the decoders read it. All texts are short and safe to print.
#[derive(Debug, Default)]
pub struct RecordedReply {
    /// The method whose reply it is, a fault, or the list of versions.
    pub what: String,
    pub read: String,
    /// What should have been read, and why it was not.
    pub unread: Vec<String>,
}

/// Reads the body of one reply of a vCenter.
pub fn recording(body: &[u8]) -> RecordedReply {
    let root = match xml::parse(body, soap::REPLY) {
        Ok(root) => root,
        Err(error) => return RecordedReply::unreadable("no XML", chain(&error)),
    };
    if root.name() == "namespaces" {
        return match session::choose_version(body) {
            Ok(version) => RecordedReply::of("API versions", format!("{} is used", for_people(&version))),
            Err(error) => RecordedReply::unreadable("API versions", chain(&error)),
        };
    }
    let content = root.children().find(|child| child.name() == "Body");
    let Some(content) = content.and_then(|body| body.children().next()) else {
        return RecordedReply::unreadable("no SOAP", "it has no body with an element".to_owned());
    };
    let name = for_people(content.name());
    let method = name.strip_suffix("Response").unwrap_or(&name);
    if content.space() == KnownNamespace::Envelope {
        return match read_answer("Fault", body, soap::nothing) {
            Ok(SoapAnswer::Fault { fault, .. }) => RecordedReply::of("fault", fault.to_string()),
            Ok(SoapAnswer::Returned(())) => RecordedReply::unreadable("fault", "it is none".to_owned()),
            Err(error) => RecordedReply::unreadable("fault", chain(&error)),
        };
    }
    // Every request names a version, so vCenter replies in this namespace.
    if content.space() != KnownNamespace::Vim {
        return match read_answer(method, body, soap::nothing) {
            Ok(_) => RecordedReply::unreadable(method, "a reply outside of urn:vim25 is accepted".to_owned()),
            Err(_) => RecordedReply::of(
                method,
                "refused, as it has to be: it is not in urn:vim25".to_owned(),
            ),
        };
    }
    let read = |response: &Element<'_>| of_method(method, response);
    match read_answer(method, body, read) {
        Ok(SoapAnswer::Returned(mut reply)) => {
            reply.what = method.to_owned();
            reply
        }
        Ok(SoapAnswer::Fault { fault, .. }) => RecordedReply::of("fault", fault.to_string()),
        Err(error) => RecordedReply::unreadable(method, chain(&error)),
    }
}

fn of_method(method: &str, response: &Element<'_>) -> Result<RecordedReply, ReplyError> {
    let counted = |count: usize, what: &str| RecordedReply::of(method, format!("{count} {what}"));
    Ok(match method {
        "RetrieveServiceContent" => {
            let content = session::read_content(response)?;
            RecordedReply::of(method, format!("root folder {}", content.root_folder))
        }
        "Login" => {
            let (key, user, _) = session::read_user(response)?;
            let has = |what: &str, it: Option<String>| it.map_or(format!("no {what}"), |_| what.to_owned());
            RecordedReply::of(method, format!("{}, {}", has("key", key), has("user", user)))
        }
        "WaitForUpdatesEx" => match read_update_set(response)? {
            None => RecordedReply::of(method, "nothing changed".to_owned()),
            Some(set) => {
                let (mut objects, mut gone) = (Vec::new(), 0);
                for change in set.changes {
                    match change {
                        Change::Upsert(object) => objects.push(object),
                        Change::Gone(_) => gone += 1,
                    }
                }
                let mut reply = of_objects(response, &objects, &set.unreadable);
                let part = if set.truncated { ", a part" } else { "" };
                let left = if gone > 0 {
                    format!(", {gone} left")
                } else {
                    String::new()
                };
                reply.read = format!("version {}{part}: {}{left}", for_people(&set.version), reply.read);
                reply
            }
        },
        "RetrievePropertiesEx" | "ContinueRetrievePropertiesEx" => {
            let page = read_page(response)?;
            let mut reply = of_objects(response, &page.objects, &page.unreadable);
            if is_of_dead_session(&page.objects) {
                reply.read.push_str(", of a dead session");
            }
            reply
        }
        "QueryConfigTarget" => {
            let target = response.child("returnval").map(decode::target_devices);
            counted(target.unwrap_or_default().len(), "devices at fixed addresses")
        }
        "QueryConfigOptionDescriptor" => counted(
            hardware::read_versions(response).len(),
            "hosts with hardware versions",
        ),
        "FindAllByUuid" | "ModifyListView" => counted(soap::returned_morefs(response)?.len(), "references"),
        _ if method.starts_with("Create") || method.ends_with("_Task") => {
            let made = soap::returned_moref(response)?;
            // The value has the key of the session.
            RecordedReply::of(method, format!("a {}", for_people(&made.kind)))
        }
        _ => RecordedReply::of(method, "Haulout does not read it".to_owned()),
    })
}

/// Objects by their type, and the values that were read of them.
fn of_objects(
    response: &Element<'_>,
    objects: &[ObjectProperties],
    unreadable: &[Unreadable],
) -> RecordedReply {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut values, mut of_ours, mut withheld, mut unread) = (0, 0, 0, Vec::new());
    for object in objects {
        *kinds.entry(&object.moref.kind).or_default() += 1;
        let read = object.properties.iter().filter(|(_, value)| value.is_some());
        let read = read.count();
        values += read;
        of_ours += read * usize::from(is_of_ours(&object.moref));
        for (path, fault) in &object.missing {
            if fault.kind == FaultKind::Unreadable {
                unread.push(format!("{} {path}: {}", object.moref, fault.message));
            } else {
                withheld += 1;
            }
        }
        unread.extend(task_unread(object));
        let rows = object
            .get("latestPage")
            .and_then(Value::tasks)
            .unwrap_or_default();
        if !rows.is_empty() {
            *kinds.entry("row of tasks").or_default() += rows.len();
        }
        for row in rows {
            match row {
                Ok(row) => unread.extend(task_unread(row)),
                Err(row) => unread.push(of_unreadable(row)),
            }
        }
    }
    unread.extend(unreadable.iter().map(of_unreadable));
    let sent = values_sent(response);
    if sent > of_ours {
        unread.push(format!("{} of {sent} values", sent - of_ours));
    }
    let kinds = kinds
        .iter()
        .map(|(kind, count)| format!("{count} {}", for_people(kind)));
    let mut kinds = kinds.collect::<Vec<_>>().join(", ");
    if kinds.is_empty() {
        kinds.push_str("no objects");
    }
    let withheld = match withheld {
        0 => String::new(),
        count => format!(", {count} withheld"),
    };
    RecordedReply {
        what: String::new(),
        read: format!("{kinds}; {values} values{withheld}"),
        unread: unread.iter().map(|line| for_people(line)).collect(),
    }
}

/// Why a whole task cannot be read. A change of one has not all of its properties, and one may be withheld.
fn task_unread(object: &ObjectProperties) -> Option<String> {
    object.moref.task()?;
    object.get("info.descriptionId")?;
    let error = task::read_task(object, None).err()?;
    Some(format!("{}: {}", object.moref, chain(&error)))
}

fn of_unreadable(object: &Unreadable) -> String {
    let of = object
        .moref
        .as_ref()
        .map_or("an object".to_owned(), Moref::to_string);
    format!("{of}: {}", object.why)
}

/// Properties whose value may have no information for Haulout.
const MAY_SAY_NOTHING: [&str; 3] = [task::RESULT, PARTIAL_MAINTENANCE, "configurationEx"];

/// Whether Haulout reads objects of this type. Others may have a property of the same name and of another type.
fn is_of_ours(moref: &Moref) -> bool {
    moref.host().is_some()
        || moref.vm().is_some()
        || moref.task().is_some()
        || moref.compute().is_some()
        || moref.datastore().is_some()
        || moref.network().is_some()
        || moref.kind == "TaskHistoryCollector"
}

/// How many values of properties the reply has, of objects that Haulout reads.
fn values_sent(element: &Element<'_>) -> usize {
    let Some(object) = element.child("obj").and_then(Element::moref) else {
        return element.children().map(values_sent).sum();
    };
    let has_value = |property: &&Element<'_>| {
        let is_removed = matches!(property.text_of("op"), Some("remove" | "indirectRemove"));
        let path = property.text_of("name").unwrap_or_default();
        !(is_removed || MAY_SAY_NOTHING.contains(&path)) && property.child_of_any_space("val").is_some()
    };
    match is_of_ours(&object) {
        true => element.children().filter(has_value).count(),
        false => 0,
    }
}

impl RecordedReply {
    fn of(what: &str, read: String) -> Self {
        Self {
            what: what.to_owned(),
            read,
            unread: Vec::new(),
        }
    }

    fn unreadable(what: &str, why: String) -> Self {
        Self {
            what: what.to_owned(),
            read: String::new(),
            unread: vec![why],
        }
    }
}

//! What a login returns, and a session without a server.

use super::super::endpoint::{CredentialPart, CredentialSource, Endpoint};
use super::*;

impl Settings {
    /// Settings for a vCenter that is never called.
    pub(crate) fn unconnected() -> Self {
        let part = || CredentialPart::Given("someone".to_owned().into());
        let credentials = CredentialSource {
            user: part(),
            password: part(),
        };
        Self::new(
            Endpoint::parse("vc.example.com").unwrap(),
            credentials,
            Trust::Nothing,
        )
    }
}

impl Session {
    /// A session that no server knows.
    pub(crate) fn unconnected(settings: &Settings, user: Option<&str>) -> Arc<Self> {
        let moref = |kind: &'static str| Moref::new(kind, kind);
        Arc::new(Self {
            generation: 1,
            transport: Transport::new(settings, None, &crate::transport::TcpConnector).unwrap(),
            soap_action: "urn:vim25/8.0.3.0".to_owned(),
            version: numbers("8.0.3.0"),
            cookie: HeaderValue::from_static("vmware_soap_session=\"1\""),
            content: ServiceContent {
                root_folder: moref("Folder"),
                property_collector: moref("PropertyCollector"),
                view_manager: moref("ViewManager"),
                session_manager: moref("SessionManager"),
                search_index: moref("SearchIndex"),
                task_manager: None,
                authorization_manager: None,
                event_manager: None,
                custom_fields_manager: None,
                provisioning_checker: None,
            },
            key: None,
            user: user.map(str::to_owned),
            began_at: None,
        })
    }
}

#[test]
fn login_returns_the_session_key_our_name_in_tasks_and_its_time() {
    let login = include_str!("../../../../proto-notes/captures/login.xml");
    let user = "<userName>administrator@vsphere.local</userName>";
    let key = "<key>52f00000-0000-4000-8000-000000000000</key>";
    for (without, has_key, has_user) in [("", true, true), (user, true, false), (key, false, true)] {
        let reply = login.replacen(without, "", 1);
        let answer = soap::read_answer("Login", reply.as_bytes(), read_user).unwrap();
        let SoapAnswer::Returned(read) = answer else {
            panic!("a fault");
        };
        let expected = (
            has_key.then(|| "52f00000-0000-4000-8000-000000000000".to_owned()),
            has_user.then(|| "administrator@vsphere.local".to_owned()),
            "2026-11-21T09:57:00.403666512Z".parse().ok(),
        );
        assert_eq!(read, expected);
    }
}

#[test]
fn api_versions_are_compared_as_numbers() {
    let settings = Settings::unconnected();
    let session = Session::unconnected(&settings, None);
    for (version, is_spoken) in [
        (&[8, 0, 3, 0][..], true),
        (&[8, 0, 2, 0], true),
        (&[7, 0], true),
        (&[8, 0, 3, 1], false),
        (&[8, 0, 10, 0], false),
        (&[11], false),
    ] {
        assert_eq!(session.speaks(version), is_spoken, "{version:?}");
    }
    assert_eq!(numbers("8.0.3.x.1"), [8, 0, 3]);
}

/// The version becomes part of a header.
#[test]
fn unknown_api_version_of_the_server_is_used_if_it_is_plain() {
    for (own, is_used) in [
        ("12.0.0.1", true),
        ("v12", true),
        ("12", true),
        ("12/0", false),
        ("12 0", false),
    ] {
        let document = format!(
            "<namespaces><namespace><name>urn:vim25</name><version>{own}</version></namespace></namespaces>"
        );
        let chosen = choose_version(document.as_bytes()).ok();
        assert_eq!(chosen, is_used.then(|| own.to_owned()));
    }
}

/// A certificate of `ca.example.com`.
const CA: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBijCCAS+gAwIBAgIUayBn1CCbFFdjMzCXDeMU3SmjQ0EwCgYIKoZIzj0EAwIw\n\
GTEXMBUGA1UEAwwOY2EuZXhhbXBsZS5jb20wIBcNMjYxMTI1MDEwNTE2WhgPMjEy\n\
NjExMDEwMTA1MTZaMBkxFzAVBgNVBAMMDmNhLmV4YW1wbGUuY29tMFkwEwYHKoZI\n\
zj0CAQYIKoZIzj0DAQcDQgAE8nVOFDOQvii0w4FCYyZIyhxSI8ACH3unn0kYjOGC\n\
4ITBQ3P9+DP8cfTNF9y9c9pW/LiFi+/0yCphp6z7pRJ2wqNTMFEwHQYDVR0OBBYE\n\
FEbIlzTc8vjKkez/RyQowgVOs0xQMB8GA1UdIwQYMBaAFEbIlzTc8vjKkez/RyQo\n\
wgVOs0xQMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAOkR9cZK\n\
JgMdmIkyIRYlPE7hAxh42YiMzf0z1QDu1UKCAiEAxCCaQwC1MZsuFt+Y7nDzFJLQ\n\
IKZCUmT514r5H6Okpfk=\n\
-----END CERTIFICATE-----\n\
";

#[test]
fn ca_file_that_changed_is_used_without_a_restart() {
    let path = std::env::temp_dir().join(format!("haulout-ca-{}.pem", std::process::id()));
    std::fs::write(&path, CA).unwrap();
    let settings = Settings {
        trust: Trust::CaBundle(path.clone()),
        ..Settings::unconnected()
    };
    let sessions = Sessions::new(settings, Arc::new(crate::transport::TcpConnector)).unwrap();
    sessions.transport().unwrap();
    for (content, is_usable) in [("no certificate", false), (CA, true), ("", false)] {
        std::fs::write(&path, content).unwrap();
        let transport = sessions.transport();
        assert_eq!(transport.is_ok(), is_usable, "{content}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(sessions.transport().is_err(), "the file is gone");
}

//! Reads properties: all pages, within limits, with a retry after a lost session or connection.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::{Error, TransportError};
use super::fault::FaultKind;
use super::moref::Moref;
use super::property::{
    ObjectProperties, Page, PropertySpec, Unreadable, WITHHELD, is_of_dead_session, read_page,
};
use super::session::{ServiceContent, Session};
use super::soap::ReplyError;
use super::xml::write::XmlWriter;

/// Objects per page. A page of hosts with all their PCI devices is well under the parser's limits.
pub(super) const PAGE: u32 = 50;
/// Pages and objects per read; a vCenter registers at most 45,000 VMs.
const MAX_PAGES: usize = 10_000;
pub(super) const MAX_OBJECTS: usize = 200_000;
/// Bytes per read. The largest is a survey of a cluster: 96 hosts, 80 VMs each, 16 KiB of devices per
/// VM.
const MAX_BYTES: usize = 128 << 20;
/// Deadline of a whole read, as a multiple of the deadline of one call.
const READ_DEADLINE_CALLS: u32 = 10;

/// All pages of one read.
#[derive(Debug, Default)]
pub(super) struct BoundedRead {
    pub(super) objects: Vec<ObjectProperties>,
    pub(super) unreadable: Vec<Unreadable>,
}

impl BoundedRead {
    /// Whether the object exists: it was returned, readable or not.
    pub(super) fn contains(&self, moref: &Moref) -> bool {
        let mut unreadable = self.unreadable.iter();
        self.objects.iter().any(|object| object.moref == *moref)
            || unreadable.any(|object| object.moref.as_ref() == Some(moref))
    }
}

/// Creates a view of all objects of type `kind`.
pub(crate) fn container_view(content: &ServiceContent, kind: &str) -> SoapCall {
    SoapCall::to("CreateContainerView", &content.view_manager)
        .with(XmlWriter::moref("container", &content.root_folder))
        .with(XmlWriter::text("type", kind))
        .with(XmlWriter::text("recursive", "true"))
}

impl Vcenter {
    /// Reads all pages in the live session. Retries once after a dead session or a broken connection,
    /// because reading has no side effects.
    pub(super) async fn retrieve(&self, spec: PropertySpec) -> Result<Vec<ObjectProperties>, Error> {
        Ok(self.retrieve_with_session(spec, PAGE).await?.1)
    }

    /// Like [`Self::retrieve`], with a page size. Returns the session as well.
    pub(super) async fn retrieve_with_session(
        &self,
        spec: PropertySpec,
        page: u32,
    ) -> Result<(Arc<Session>, Vec<ObjectProperties>), Error> {
        let session = self.sessions.get().await?;
        match self.retrieve_in(&session, spec.clone(), page).await {
            Err(Error::Refused { source, .. }) if source.kind == FaultKind::NotAuthenticated => {}
            Err(Error::Transport {
                source: TransportError::Connection(_),
                ..
            }) => {}
            Ok(objects) => return Ok((session, objects)),
            Err(error) => return Err(error),
        }
        let session = self.sessions.get().await?;
        let objects = self.retrieve_in(&session, spec, page).await?;
        Ok((session, objects))
    }

    /// Reads all pages in this session. An unreadable object is an error, because decisions need the
    /// complete result.
    pub(super) async fn retrieve_in(
        &self,
        session: &Session,
        spec: PropertySpec,
        page: u32,
    ) -> Result<Vec<ObjectProperties>, Error> {
        let read = self.retrieve_pages(session, spec, page).await?;
        let Some(broken) = read.unreadable.into_iter().next() else {
            return Ok(read.objects);
        };
        let call = SoapCall::to("RetrievePropertiesEx", &session.content.property_collector);
        let object = broken.moref.map_or_else(
            || "an object without a reference".to_owned(),
            |moref| moref.to_string(),
        );
        let why = broken.why;
        Err(call.unreadable(ReplyError::Object { object, why }))
    }

    /// Like [`Self::retrieve_in`]; returns unreadable objects separately.
    pub(super) async fn retrieve_pages(
        &self,
        session: &Session,
        spec: PropertySpec,
        page: u32,
    ) -> Result<BoundedRead, Error> {
        let collector = &session.content.property_collector;
        let options = XmlWriter::new("options").with(XmlWriter::text("maxObjects", page.to_string()));
        let first = SoapCall::to("RetrievePropertiesEx", collector)
            .with(spec.render("specSet"))
            .with(options);
        let read_next = |call: SoapCall| -> PageFuture<'_> {
            Box::pin(async move { self.call_in(session, &call, read_page).await })
        };
        let all = within(self.settings.call_deadline, first.clone(), read_next).await?;
        if is_of_dead_session(&all.objects) {
            self.sessions.drop_session(session.generation);
            return Err(first.dead_session(WITHHELD));
        }
        Ok(all)
    }
}

type PageFuture<'a> = Pin<Box<dyn Future<Output = Result<Page, Error>> + Send + 'a>>;

/// Reads all pages within the deadline of a whole read.
async fn within<'a>(
    call: Duration,
    first: SoapCall,
    read_next: impl Fn(SoapCall) -> PageFuture<'a>,
) -> Result<BoundedRead, Error> {
    let deadline = call * READ_DEADLINE_CALLS;
    let (operation, object) = (first.method, first.on.to_string());
    let read = tokio::time::timeout(deadline, all_pages(first, read_next)).await;
    read.unwrap_or_else(|_| {
        Err(Error::Transport {
            operation,
            object,
            source: TransportError::Deadline(deadline),
        })
    })
}

/// Reads one page after the other.
async fn all_pages<'a>(
    first: SoapCall,
    read_next: impl Fn(SoapCall) -> PageFuture<'a>,
) -> Result<BoundedRead, Error> {
    let mut read = BoundedRead::default();
    let mut bytes = 0;
    let mut call = first;
    for _ in 0..MAX_PAGES {
        let page = read_next(call.clone()).await?;
        bytes += page.size;
        read.objects.extend(page.objects);
        read.unreadable.extend(page.unreadable);
        let Some(token) = page.token else {
            return Ok(read);
        };
        let objects = read.objects.len() + read.unreadable.len();
        ReplyError::check_limit("bytes", bytes, MAX_BYTES)
            .and_then(|()| ReplyError::check_limit("objects", objects, MAX_OBJECTS))
            .map_err(|source| call.unreadable(source))?;
        call = SoapCall::to("ContinueRetrievePropertiesEx", &call.on).with(XmlWriter::text("token", token));
    }
    let source = ReplyError::Endless {
        what: "pages",
        limit: MAX_PAGES,
    };
    Err(call.unreadable(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a token with each page, without end.
    fn endless_pages(_: SoapCall) -> PageFuture<'static> {
        let token = Some("more".to_owned());
        Box::pin(std::future::ready(Ok(Page {
            token,
            ..Page::default()
        })))
    }

    fn first_page() -> SoapCall {
        SoapCall::to("RetrievePropertiesEx", &Moref::new("PropertyCollector", "pc"))
    }

    #[tokio::test]
    async fn pages_without_an_end_are_given_up() {
        let error = all_pages(first_page(), endless_pages).await.unwrap_err();
        assert!(
            error.chain().contains("no end after 10000 pages"),
            "{}",
            error.chain()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn all_pages_together_have_a_deadline() {
        let slow = |call| -> PageFuture<'static> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(29)).await;
                endless_pages(call).await
            })
        };
        let began = tokio::time::Instant::now();
        let error = within(Duration::from_secs(30), first_page(), slow)
            .await
            .unwrap_err();
        assert!(
            error.chain().contains("no whole answer within 300 s"),
            "{}",
            error.chain()
        );
        assert_eq!(began.elapsed(), Duration::from_secs(300));
    }

    #[test]
    fn limit_itself_is_allowed() {
        assert_eq!(ReplyError::check_limit("bytes", 7, 7), Ok(()));
        let error = ReplyError::check_limit("bytes", 8, 7).unwrap_err();
        assert!(error.to_string().ends_with("7 bytes"), "{error}");
    }
}

//! Changes of the page, of which the script asks: rows of the large tables, and the small sections.

use outboard_pool::{
    Manager,
    api::{Changes, Object, PoolError, PoolView},
    record::LeaseState,
};

use super::{
    history,
    rows::{of_box, of_gpu, of_lease},
    sections,
};
use crate::{
    limits::PAGE_LEASES_MAX,
    operations::{PageChanges, PageRow, PageSection},
};

/// Returns the rows that have changed after a revision, with all leases if they are few, since
/// their time goes on.
pub(crate) fn changes(
    manager: &Manager,
    now_ms: u64,
    after: &str,
) -> Result<PageChanges, PoolError> {
    let Changes {
        revision,
        more,
        events,
    } = manager.changes_after(now_ms, after)?;
    let view = manager.view(now_ms);
    let mut rows = Vec::new();
    for event in &events {
        let (section, html) = match &event.object {
            Object::Box(of) => ("boxes", of.as_ref().map(|of| of_box(of).html())),
            Object::Gpu(gpu) => ("gpus", gpu.as_ref().map(|gpu| of_gpu(gpu).html())),
            Object::Lease(lease) => {
                let lease = lease.as_ref().filter(|it| it.state != LeaseState::Over);
                ("leases", lease.map(|lease| of_lease(lease).html()))
            }
            Object::Claim(_) | Object::Quota(_) | Object::Spares(_) => continue,
        };
        let name = event.name.clone();
        rows.push(PageRow {
            section,
            name,
            html,
        });
    }
    if view.leases.len() <= PAGE_LEASES_MAX {
        rows.extend(view.leases.iter().map(|lease| PageRow {
            section: "leases",
            name: lease.lease.to_string(),
            html: Some(of_lease(lease).html()),
        }));
    }
    Ok(PageChanges {
        revision,
        more,
        rows,
        sections: whole(manager, &view),
    })
}

/// Returns the sections that are small.
fn whole(manager: &Manager, view: &PoolView) -> Vec<PageSection> {
    let mut all = Vec::new();
    let mut add = |section, fill: &dyn Fn(&mut String)| {
        let mut html = String::new();
        fill(&mut html);
        all.push(PageSection { section, html });
    };
    add("summary", &|out| sections::summary(out, view));
    add("history", &|out| {
        history::history(out, &manager.history(), manager.sample());
    });
    add("queue", &|out| {
        sections::queue(out, view, manager.waiting_count())
    });
    add("spares", &|out| {
        sections::spares(out, &manager.spares_view())
    });
    all
}

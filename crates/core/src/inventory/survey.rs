//! Converts surveys of hosts for placement.

use crate::facts::vsphere::{Surveyed, UnreadableVm};
use crate::ids::HostRef;
use crate::maintenance::placement::HostSurvey;

pub fn readings(surveyed: Surveyed) -> impl Iterator<Item = (HostRef, HostSurvey)> {
    let read = surveyed.hosts.into_iter().map(|host| {
        let reading = match host.unreadable.split_first() {
            None => HostSurvey::Read(host.reading),
            Some((first, rest)) => HostSurvey::Unreadable(unreadable(first, rest.len())),
        };
        (host.host, reading)
    });
    let not_read = surveyed.not_surveyed.into_iter();
    read.chain(not_read.map(|host| (host.host, HostSurvey::Unreadable(host.why))))
}

/// Which VM may hold any device of its host, as people read it.
fn unreadable(vm: &UnreadableVm, others: usize) -> String {
    let name = vm.name.as_deref().unwrap_or_else(|| vm.vm.as_str());
    let others = match others {
        0 => String::new(),
        1 => " (and of another VM)".to_owned(),
        _ => format!(" (and of {others} other VMs)"),
    };
    format!("the devices of VM {name}{others} cannot be read: {}", vm.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::vsphere::{HostReading, NotSurveyed, SurveyedHost};
    use crate::fixtures::{host_ref, vm_ref};

    #[test]
    fn the_reason_names_one_vm_and_counts_the_others() {
        let vm = UnreadableVm {
            vm: vm_ref(1),
            name: Some("vCLS-1".to_owned()),
            why: "NoPermission".to_owned(),
        };
        for (others, of_others) in [(0, ""), (1, " (and of another VM)"), (2, " (and of 2 other VMs)")] {
            let expected = format!("the devices of VM vCLS-1{of_others} cannot be read: NoPermission");
            assert_eq!(unreadable(&vm, others), expected);
        }
        let unnamed = UnreadableVm { name: None, ..vm };
        assert!(unreadable(&unnamed, 0).contains("VM vm-1 "));
    }

    #[test]
    fn every_host_that_was_asked_about_has_a_reading() {
        let unreadable = UnreadableVm {
            vm: vm_ref(2),
            name: None,
            why: "NoPermission".to_owned(),
        };
        let surveyed = Surveyed {
            hosts: vec![
                SurveyedHost {
                    host: host_ref(1),
                    reading: HostReading::default(),
                    unreadable: Vec::new(),
                },
                SurveyedHost {
                    host: host_ref(2),
                    reading: HostReading::default(),
                    unreadable: vec![unreadable],
                },
            ],
            not_surveyed: vec![NotSurveyed {
                host: host_ref(3),
                why: "gone".to_owned(),
            }],
        };
        let readings: Vec<_> = readings(surveyed).collect();
        assert_eq!(
            readings[0],
            (host_ref(1), HostSurvey::Read(HostReading::default()))
        );
        assert!(
            matches!(&readings[1], (host, HostSurvey::Unreadable(why)) if *host == host_ref(2) && why.contains("vm-2"))
        );
        assert_eq!(
            readings[2],
            (host_ref(3), HostSurvey::Unreadable("gone".to_owned()))
        );
    }
}

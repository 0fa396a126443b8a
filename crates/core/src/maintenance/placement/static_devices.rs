//! Which devices of its host a VM gets in place of those at fixed addresses of another host.

use super::holds_address;
use super::{HostSurvey, RejectionReason};
use crate::facts::vsphere::{DeviceChange, PciDevice, StaticDevice};
use crate::ids::VmRef;

/// The maximum number of devices at fixed addresses that are changed. A VM has at most 32 DirectPath I/O devices (VMware Configuration
/// Maximums, vSphere 8.0).
pub const MAX_STATIC_DEVICES: usize = 32;

/// The devices at fixed addresses of a VM that may be relocated, and those that it can get on the host where it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPlacement {
    /// The devices in its configuration.
    pub devices: Vec<StaticDevice>,
    /// The devices that it can get.
    pub offer: DeviceOffer,
}

/// The devices that a VM can get on the host where it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOffer {
    /// Unknown until vCenter has reported the devices of the hosts.
    Unreported,
    /// Unknown before a survey of the host.
    Unsurveyed,
    Devices(Vec<DeviceChange>),
    /// Too few, for this reason.
    Rejected(RejectionReason),
}

impl DeviceOffer {
    /// A device of the host for each of `devices`. Those that the VM had there before, `former`, are preferred; then those at the
    /// same addresses as now.
    pub fn of(
        vm: &VmRef,
        devices: &[StaticDevice],
        former: &[StaticDevice],
        of_host: Option<&[PciDevice]>,
        survey: Option<&HostSurvey>,
    ) -> Self {
        let Some(of_host) = of_host else {
            return Self::Unreported;
        };
        let claims = match survey {
            None => return Self::Unsurveyed,
            Some(HostSurvey::Unreadable(why)) => {
                return Self::Rejected(RejectionReason::Unreadable(why.clone()));
            }
            Some(HostSurvey::Read(reading)) => &reading.claims,
        };
        let is_free = |device: &&PciDevice| {
            let mut others = claims.iter().filter(|claim| claim.vm != *vm);
            !others.any(|claim| holds_address(&claim.device, device))
        };
        let mut free: Vec<&PciDevice> = of_host.iter().filter(is_free).collect();
        let mut chosen: Vec<Option<String>> = vec![None; devices.len()];
        let former = if former.len() == devices.len() {
            former
        } else {
            &[]
        };
        for is_any_accepted in [false, true] {
            for (index, (device, chosen)) in devices.iter().zip(&mut chosen).enumerate() {
                let preferred = &former.get(index).unwrap_or(device).address;
                let need = device.requirement();
                let fits = |it: &&PciDevice| {
                    let is_preferred = it.address.eq_ignore_ascii_case(preferred);
                    need.accepts(it) && (is_any_accepted || is_preferred)
                };
                if chosen.is_none()
                    && let Some(at) = free.iter().position(fits)
                {
                    *chosen = Some(free.remove(at).address.clone());
                }
            }
        }
        let change = |(device, to): (&StaticDevice, Option<String>)| {
            Some(DeviceChange {
                from: device.address.clone(),
                to: to?,
            })
        };
        let changes: Option<Vec<DeviceChange>> = devices.iter().zip(chosen).map(change).collect();
        changes.map_or(Self::Rejected(RejectionReason::DevicesTaken), Self::Devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::vsphere::{Claim, ClaimedDevice, HostReading};
    use crate::fixtures::{A40, pci, vm_ref};

    const FIRST: &str = "0000:3b:00.0";
    const SECOND: &str = "0000:5e:00.0";
    const THIRD: &str = "0000:af:00.0";

    fn device(address: &str) -> StaticDevice {
        StaticDevice {
            address: address.to_owned(),
            vendor: A40.0,
            device: A40.1,
        }
    }

    /// The offer of a host with A40s at the addresses `has`, of which other VMs hold `taken`.
    fn offer(devices: &[&str], former: &[&str], has: &[&str], taken: &[&str]) -> DeviceOffer {
        let devices: Vec<StaticDevice> = devices.iter().copied().map(device).collect();
        let former: Vec<StaticDevice> = former.iter().copied().map(device).collect();
        let has: Vec<PciDevice> = has.iter().map(|address| pci(address, A40)).collect();
        let claims = taken.iter().map(|address| Claim {
            vm: vm_ref(9),
            device: ClaimedDevice::Address((*address).to_owned()),
        });
        let survey = HostSurvey::Read(HostReading {
            claims: claims.collect(),
            ..HostReading::default()
        });
        DeviceOffer::of(&vm_ref(1), &devices, &former, Some(&has), Some(&survey))
    }

    fn changes(pairs: &[(&str, &str)]) -> DeviceOffer {
        let change = |(from, to): &(&str, &str)| DeviceChange {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
        };
        DeviceOffer::Devices(pairs.iter().map(change).collect())
    }

    #[test]
    fn device_at_the_same_address_is_preferred_and_named_all_the_same() {
        let offer = offer(&[SECOND], &[], &[FIRST, SECOND], &[]);
        assert_eq!(offer, changes(&[(SECOND, SECOND)]));
    }

    #[test]
    fn another_free_device_of_the_model_is_taken_where_that_is_held() {
        let offer = offer(&[SECOND], &[], &[FIRST, SECOND], &[&SECOND.to_uppercase()]);
        assert_eq!(offer, changes(&[(SECOND, FIRST)]));
    }

    #[test]
    fn vm_gets_its_former_devices_back_at_home() {
        let offer = offer(&[SECOND, FIRST], &[FIRST, THIRD], &[FIRST, SECOND, THIRD], &[]);
        assert_eq!(offer, changes(&[(SECOND, FIRST), (FIRST, THIRD)]));
    }

    #[test]
    fn no_device_is_given_twice() {
        let offer = offer(&[THIRD, FIRST], &[], &[FIRST, SECOND], &[]);
        assert_eq!(offer, changes(&[(THIRD, SECOND), (FIRST, FIRST)]));
    }

    #[test]
    fn addresses_from_a_record_with_another_count_are_not_used() {
        let offer = offer(&[SECOND], &[FIRST, THIRD], &[FIRST, SECOND], &[]);
        assert_eq!(offer, changes(&[(SECOND, SECOND)]));
    }

    #[test]
    fn host_without_a_free_device_of_the_model_is_rejected() {
        let taken = DeviceOffer::Rejected(RejectionReason::DevicesTaken);
        assert_eq!(offer(&[FIRST], &[], &[FIRST], &[FIRST]), taken);
        assert_eq!(offer(&[FIRST, SECOND], &[], &[FIRST], &[]), taken);
        let other_model = [pci(FIRST, (0x8086, 0x56c0))];
        let survey = HostSurvey::Read(HostReading::default());
        let offer = DeviceOffer::of(
            &vm_ref(1),
            &[device(FIRST)],
            &[],
            Some(&other_model),
            Some(&survey),
        );
        assert_eq!(offer, taken);
    }

    #[test]
    fn nothing_is_offered_without_a_survey_or_list_of_devices() {
        let of = |devices: Option<&[PciDevice]>, survey: Option<&HostSurvey>| {
            DeviceOffer::of(&vm_ref(1), &[], &[], devices, survey)
        };
        let read = HostSurvey::Read(HostReading::default());
        let unreadable = HostSurvey::Unreadable("no permission".to_owned());
        assert_eq!(of(Some(&[]), None), DeviceOffer::Unsurveyed);
        let why = RejectionReason::Unreadable("no permission".to_owned());
        assert_eq!(of(Some(&[]), Some(&unreadable)), DeviceOffer::Rejected(why));
        assert_eq!(of(None, Some(&read)), DeviceOffer::Unreported);
    }
}

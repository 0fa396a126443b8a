//! The objects of the simulated vCenter as its API shows them: references, types and properties.

use crate::clock;
use crate::vcenter::{SYSTEM, TaskState, Vcenter, Work};

/// A managed object reference: type and value.
pub type Moref = (&'static str, String);

/// The address and the ids of the GPU of each host.
const GPU: &str = "0000:3b:00.0";
const VENDOR: i32 = 4318;
const DEVICE: i32 = 8757;

/// The profile of a vGPU that takes a whole GPU.
const PROFILE: &str = "grid_a40-48q";

/// Tasks on a page of the task history, besides the one that is queued for years.
const HISTORY_PAGE: usize = 99;

/// The types that traversals and property sets name, with the types they include.
pub fn is_a(kind: &str, wanted: &str) -> bool {
    kind == wanted
        || match wanted {
            "ManagedEntity" => matches!(
                kind,
                "HostSystem"
                    | "VirtualMachine"
                    | "ClusterComputeResource"
                    | "Folder"
                    | "Datacenter"
                    | "ResourcePool"
                    | "Datastore"
                    | "Network"
            ),
            "ComputeResource" => kind == "ClusterComputeResource",
            _ => false,
        }
}

/// A value as XML: the type, and what is inside.
pub type Value = (String, String);

fn text(value: impl ToString) -> Option<Value> {
    Some(("xsd:string".to_owned(), escaped(&value.to_string())))
}

fn typed(kind: &str, value: impl ToString) -> Option<Value> {
    Some((kind.to_owned(), escaped(&value.to_string())))
}

/// Escapes text for XML.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

fn one(moref: &Moref) -> Option<Value> {
    // The type of the object is an attribute of the value.
    Some((format!("@{}", moref.0), moref.1.clone()))
}

fn many(morefs: &[Moref]) -> Option<Value> {
    let all: String = morefs
        .iter()
        .map(|(kind, id)| format!("<ManagedObjectReference type=\"{kind}\">{id}</ManagedObjectReference>"))
        .collect();
    Some(("ArrayOfManagedObjectReference".to_owned(), all))
}

/// The number in a reference such as `vm-7`.
pub fn number(id: &str) -> Option<usize> {
    id.rsplit('-').next()?.parse().ok()
}

/// The reference of a host.
pub fn host_ref(host: usize) -> Moref {
    ("HostSystem", format!("host-{host}"))
}

/// The reference of a VM.
pub fn vm_ref(vm: usize) -> Moref {
    ("VirtualMachine", format!("vm-{vm}"))
}

/// The reference of a task.
pub fn task_ref(task: usize) -> Moref {
    ("Task", format!("task-{task}"))
}

const CLUSTER: &str = "domain-c1";
const POOL: &str = "resgroup-1";
const NETWORK: &str = "network-1";
const DATASTORE: &str = "datastore-1";

fn fixed(kind: &'static str, id: &str) -> Moref {
    (kind, id.to_owned())
}

impl Vcenter {
    /// The reference, if the object exists.
    pub fn known(&self, kind: &str, id: &str) -> Option<Moref> {
        let index = number(id);
        let moref = match kind {
            "HostSystem" => host_ref(index.filter(|index| *index < self.hosts.len())?),
            "VirtualMachine" => vm_ref(index.filter(|index| *index < self.vms.len())?),
            "Task" => {
                task_ref(index.filter(|index| self.tasks.get(*index).is_some_and(|task| !task.forgotten))?)
            }
            "ClusterComputeResource" => fixed("ClusterComputeResource", CLUSTER),
            "ResourcePool" => fixed("ResourcePool", POOL),
            "Network" => fixed("Network", NETWORK),
            "Datastore" => fixed("Datastore", DATASTORE),
            "Datacenter" => fixed("Datacenter", "datacenter-1"),
            "TaskHistoryCollector" => fixed("TaskHistoryCollector", id),
            "Folder" => match id {
                "group-d1" => fixed("Folder", "group-d1"),
                "group-h1" => fixed("Folder", "group-h1"),
                "group-v1" => fixed("Folder", "group-v1"),
                _ => return None,
            },
            _ => return None,
        };
        (moref.1 == id).then_some(moref)
    }

    /// All hosts or VMs.
    pub fn all(&self, kind: &str) -> Vec<Moref> {
        match kind {
            "HostSystem" => (0..self.hosts.len()).map(host_ref).collect(),
            "VirtualMachine" => (0..self.vms.len()).map(vm_ref).collect(),
            _ => Vec::new(),
        }
    }

    /// The objects to which a property leads.
    pub fn references(&self, of: &Moref, path: &str) -> Vec<Moref> {
        let index = number(&of.1).unwrap_or_default();
        match (of.0, path) {
            ("HostSystem", "parent") => vec![fixed("ClusterComputeResource", CLUSTER)],
            ("HostSystem", "recentTask") => self.tasks_of(&self.hosts[index].tasks),
            ("HostSystem", "vm") => {
                let here = |vm: &usize| self.vms[*vm].host == index;
                (0..self.vms.len()).filter(here).map(vm_ref).collect()
            }
            ("HostSystem" | "VirtualMachine", "datastore") => vec![fixed("Datastore", DATASTORE)],
            ("HostSystem" | "VirtualMachine", "network") => vec![fixed("Network", NETWORK)],
            ("VirtualMachine", "recentTask") => self.tasks_of(&self.vms[index].tasks),
            ("VirtualMachine", "runtime.host") => vec![host_ref(self.vms[index].host)],
            ("VirtualMachine", "parent") => vec![fixed("Folder", "group-v1")],
            ("ClusterComputeResource", "parent") => vec![fixed("Folder", "group-h1")],
            ("Folder", "parent") if of.1 != "group-d1" => vec![fixed("Datacenter", "datacenter-1")],
            ("Datacenter", "parent") => vec![fixed("Folder", "group-d1")],
            _ => Vec::new(),
        }
    }

    fn tasks_of(&self, tasks: &[usize]) -> Vec<Moref> {
        self.recent(tasks).into_iter().map(task_ref).collect()
    }

    /// The value of a property; `None` if it is unset.
    pub fn property(&self, of: &Moref, path: &str) -> Option<Value> {
        let index = number(&of.1).unwrap_or_default();
        match of.0 {
            "HostSystem" => self.host_property(of, index, path),
            "VirtualMachine" => self.vm_property(of, index, path),
            "Task" => self.task_property(index, path),
            "ClusterComputeResource" => match path {
                "name" => text("gpu"),
                "resourcePool" => one(&fixed("ResourcePool", POOL)),
                "configurationEx" => typed_xml(
                    "ClusterConfigInfoEx",
                    &format!(
                        "<dasConfig></dasConfig><drsConfig><enabled>{}</enabled><enableVmBehaviorOverrides>true</enableVmBehaviorOverrides>\
                         <defaultVmBehavior>fullyAutomated</defaultVmBehavior><vmotionRate>3</vmotionRate></drsConfig>",
                        self.has_drs
                    ),
                ),
                _ => None,
            },
            "ResourcePool" => (path == "owner").then(|| one(&fixed("ClusterComputeResource", CLUSTER)))?,
            "Network" => (path == "name").then(|| text("VM Network"))?,
            "Datastore" => match path {
                "name" => text("shared"),
                "summary.maintenanceMode" => text("normal"),
                _ => None,
            },
            "Datacenter" => (path == "name").then(|| text("dc"))?,
            "TaskHistoryCollector" => (path == "latestPage").then(|| self.latest_page())?,
            _ => None,
        }
    }

    /// The newest tasks. As on real vCenters, tasks that do not exist any more are there: those that a restart has forgotten, whose
    /// rows never end, and one that is queued for years.
    fn latest_page(&self) -> Option<Value> {
        let field = |name: &str, value: Option<Value>| match value {
            None => String::new(),
            Some((kind, inside)) => match kind.strip_prefix('@') {
                Some(of) => format!("<{name} type=\"{of}\">{inside}</{name}>"),
                None => format!("<{name} xsi:type=\"{kind}\">{inside}</{name}>"),
            },
        };
        let row = |task: usize| {
            let mut fields = format!("<task type=\"Task\">task-{task}</task>");
            for name in [
                "descriptionId",
                "entity",
                "state",
                "cancelled",
                "error",
                "reason",
                "queueTime",
            ] {
                let of_forgotten = self.tasks[task].forgotten.then_some(name);
                let value = match of_forgotten {
                    Some("state") => typed("TaskInfoState", "running"),
                    Some("error") => None,
                    _ => self.task_property(task, &format!("info.{name}")),
                };
                fields.push_str(&field(name, value));
            }
            format!("<TaskInfo>{fields}</TaskInfo>")
        };
        let newest = self.tasks.len().saturating_sub(HISTORY_PAGE)..self.tasks.len();
        let rows: String = newest.map(row).collect();
        let years_old = "<TaskInfo><task type=\"Task\">task-999999</task>\
            <descriptionId>HostSystem.enterMaintenanceMode</descriptionId><entity type=\"HostSystem\">host-0</entity>\
            <state>queued</state><cancelled>false</cancelled><queueTime>2012-02-27T08:00:00Z</queueTime></TaskInfo>";
        typed_xml("ArrayOfTaskInfo", &format!("{rows}{years_old}"))
    }

    fn host_property(&self, of: &Moref, index: usize, path: &str) -> Option<Value> {
        let host = &self.hosts[index];
        match path {
            "name" => text(&host.name),
            "parent" => one(&fixed("ClusterComputeResource", CLUSTER)),
            "runtime.connectionState" => {
                let state = if host.connected {
                    "connected"
                } else {
                    "notResponding"
                };
                typed("HostSystemConnectionState", state)
            }
            "runtime.inMaintenanceMode" => typed("xsd:boolean", host.in_maintenance),
            "summary.config.product.build" => text("24022510"),
            "recentTask" | "datastore" | "vm" | "network" => many(&self.references(of, path)),
            "hardware.memorySize" => typed("xsd:long", 512_u64 << 30),
            "config.sharedPassthruGpuTypes" if self.has_vgpus => {
                typed_xml("ArrayOfString", &format!("<string>{PROFILE}</string>"))
            }
            "config.graphicsInfo" if self.has_vgpus => typed_xml(
                "ArrayOfHostGraphicsInfo",
                "<HostGraphicsInfo><graphicsType>sharedDirect</graphicsType><memorySizeInKB>50331648</memorySizeInKB></HostGraphicsInfo>",
            ),
            "config.pciPassthruInfo" => typed_xml(
                "ArrayOfHostPciPassthruInfo",
                &format!(
                    "<HostPciPassthruInfo xsi:type=\"HostPciPassthruInfo\"><id>{GPU}</id><dependentDevice>{GPU}</dependentDevice>\
                     <passthruEnabled>true</passthruEnabled><passthruCapable>true</passthruCapable>\
                     <passthruActive>true</passthruActive></HostPciPassthruInfo>"
                ),
            ),
            "hardware.pciDevice" => typed_xml(
                "ArrayOfHostPciDevice",
                &format!(
                    "<HostPciDevice><id>{GPU}</id><classId>768</classId><bus>59</bus><slot>0</slot><function>0</function>\
                     <vendorId>{VENDOR}</vendorId><subVendorId>{VENDOR}</subVendorId><vendorName>NVIDIA</vendorName>\
                     <deviceId>{DEVICE}</deviceId><subDeviceId>5178</subDeviceId><deviceName>A40</deviceName></HostPciDevice>"
                ),
            ),
            _ => None,
        }
    }

    fn vm_property(&self, of: &Moref, index: usize, path: &str) -> Option<Value> {
        let vm = &self.vms[index];
        match path {
            "name" => text(&vm.name),
            "config.uuid" => text(&vm.uuid),
            "config.template" => typed("xsd:boolean", false),
            "config.hardware.memoryMB" => typed("xsd:int", 65_536),
            "summary.config.memoryReservation" => typed("xsd:int", 0),
            "config.version" => text("vmx-19"),
            "runtime.powerState" => {
                let state = if vm.is_shown_on() {
                    "poweredOn"
                } else {
                    "poweredOff"
                };
                typed("VirtualMachinePowerState", state)
            }
            "runtime.host" | "parent" => one(self.references(of, path).first()?),
            "resourcePool" => one(&fixed("ResourcePool", POOL)),
            "guest.toolsRunningStatus" => {
                let status = if vm.on && !vm.tools_stopped {
                    "guestToolsRunning"
                } else {
                    "guestToolsNotRunning"
                };
                text(status)
            }
            "runtime.question" if vm.asks => typed_xml(
                "VirtualMachineQuestionInfo",
                "<id>1</id><text>simulated question</text>",
            ),
            "datastore" | "network" | "recentTask" => many(&self.references(of, path)),
            "config.hardware.device" if vm.has_gpu && self.has_vgpus => typed_xml(
                "ArrayOfVirtualDevice",
                &format!(
                    "<VirtualDevice xsi:type=\"VirtualPCIPassthrough\"><key>13000</key>\
                     <backing xsi:type=\"VirtualPCIPassthroughVmiopBackingInfo\"><vgpu>{PROFILE}</vgpu>\
                     <migrateSupported>true</migrateSupported></backing><controllerKey>100</controllerKey></VirtualDevice>"
                ),
            ),
            "config.hardware.device" => {
                let assigned = if vm.is_shown_on() {
                    format!("<assignedId>{GPU}</assignedId>")
                } else {
                    String::new()
                };
                let device = format!(
                    "<VirtualDevice xsi:type=\"VirtualPCIPassthrough\"><key>13000</key>\
                     <backing xsi:type=\"VirtualPCIPassthroughDynamicBackingInfo\"><deviceName></deviceName>\
                     <allowedDevice><vendorId>{VENDOR}</vendorId><deviceId>{DEVICE}</deviceId></allowedDevice>{assigned}</backing>\
                     <controllerKey>100</controllerKey><unitNumber>18</unitNumber></VirtualDevice>"
                );
                let disk = "<VirtualDevice xsi:type=\"VirtualDisk\"><key>2000</key></VirtualDevice>";
                typed_xml("ArrayOfVirtualDevice", if vm.has_gpu { &device } else { disk })
            }
            _ => None,
        }
    }

    fn task_property(&self, index: usize, path: &str) -> Option<Value> {
        let task = &self.tasks[index];
        match path {
            "info.descriptionId" => text(match task.work {
                Work::Enter(_) => "HostSystem.enterMaintenanceMode",
                Work::Exit(_) => "HostSystem.exitMaintenanceMode",
                Work::PowerOff(_) => "VirtualMachine.powerOff",
                Work::PowerOn { by_drs: true, .. } => "Datacenter.powerOnVm",
                Work::PowerOn { .. } => "VirtualMachine.powerOn",
                Work::Relocate { .. } => "VirtualMachine.relocate",
                Work::Vmotion { .. } => "Drm.ExecuteVMotionLRO",
                Work::Foreign(_) => "VirtualMachine.createSnapshot",
            }),
            "info.entity" => match task.work {
                Work::Enter(host) | Work::Exit(host) => one(&host_ref(host)),
                Work::PowerOn { by_drs: true, .. } => one(&fixed("Datacenter", "datacenter-1")),
                Work::PowerOff(vm)
                | Work::PowerOn { vm, .. }
                | Work::Relocate { vm, .. }
                | Work::Vmotion { vm, .. }
                | Work::Foreign(vm) => one(&vm_ref(vm)),
            },
            "info.state" => typed(
                "TaskInfoState",
                match task.state {
                    TaskState::Running => "running",
                    TaskState::Success => "success",
                    TaskState::Error(_) => "error",
                },
            ),
            "info.cancelled" => typed("xsd:boolean", task.cancelled),
            "info.error" => {
                let TaskState::Error(fault) = task.state else {
                    return None;
                };
                let inside = if fault == "InvalidPowerState" {
                    "<requestedState>poweredOff</requestedState><existingState>poweredOff</existingState>"
                } else {
                    ""
                };
                let xml = format!(
                    "<fault xsi:type=\"{fault}\">{inside}</fault><localizedMessage>simulated {fault}</localizedMessage>"
                );
                typed_xml("LocalizedMethodFault", &xml)
            }
            "info.reason" if task.user == SYSTEM => typed_xml("TaskReasonSystem", ""),
            "info.reason" => typed_xml(
                "TaskReasonUser",
                &format!("<userName>{}</userName>", escaped(task.user)),
            ),
            "info.queueTime" => typed("xsd:dateTime", clock::wall_at(task.began)),
            "info.result" => {
                let Work::PowerOn { vm, by_drs: true } = task.work else {
                    return None;
                };
                let vm = format!("<vm type=\"VirtualMachine\">vm-{vm}</vm>");
                let xml = match (&task.state, task.not_attempted) {
                    (TaskState::Running | TaskState::Error(_), _) => return None,
                    (TaskState::Success, None) => format!("<attempted>{vm}</attempted>"),
                    (TaskState::Success, Some(fault)) => format!(
                        "<notAttempted>{vm}<fault><fault xsi:type=\"{fault}\"></fault>\
                         <localizedMessage>simulated {fault}</localizedMessage></fault></notAttempted>"
                    ),
                };
                typed_xml("ClusterPowerOnVmResult", &xml)
            }
            _ => None,
        }
    }
}

fn typed_xml(kind: &str, xml: &str) -> Option<Value> {
    Some((kind.to_owned(), xml.to_owned()))
}

//! The trait's operations that this device supports: each is an inherent method of [`Soft`]. The
//! others answer that they are not supported.

use outboard_device::{Cx, Device, Failure, Pending};
use outboard_wire::messages as m;

use super::Soft;

/// Inherent methods come first in method resolution, so no method calls itself.
macro_rules! device {
    ($($method:ident($message:ty) -> $result:ty;)*) => {
        impl Device for Soft {
            $(fn $method(&mut self, cx: &mut Cx<'_>, message: &$message) -> Result<$result, Failure> {
                Soft::$method(self, cx, message)
            })*
        }
    };
}

device! {
    primary_context_retain(m::PrimaryContextRetain) -> ();
    context_create(m::ContextCreate) -> ();
    context_destroy(m::ContextDestroy) -> ();
    fence_context(m::FenceContext) -> Pending;
    cu_ctx_get_limit(m::CuCtxGetLimit) -> m::CuCtxGetLimitReply;
    cu_ctx_set_limit(m::CuCtxSetLimit) -> ();
    cu_ctx_reset_persisting_l2_cache(m::CuCtxResetPersistingL2Cache) -> ();
    context_cache_config(m::ContextCacheConfig) -> ();
    stream_create(m::StreamCreate) -> ();
    stream_destroy(m::StreamDestroy) -> ();
    fence_stream(m::FenceStream) -> Pending;
    fence_event(m::FenceEvent) -> Pending;
    board_open(m::BoardOpen) -> m::BoardOpenReply;
    stream_wait_event(m::StreamWaitEvent) -> ();
    event_record(m::EventRecord) -> ();
    stream_set_attribute(m::StreamSetAttribute<'_>) -> ();
    stream_get_attribute(m::StreamGetAttribute) -> m::StreamGetAttributeReply<'static>;
    event_create(m::EventCreate) -> ();
    event_destroy(m::EventDestroy) -> ();
    ipc_export_memory(m::IpcExportMemory) -> m::IpcExportMemoryReply<'static>;
    ipc_open_memory(m::IpcOpenMemory<'_>) -> m::IpcOpenMemoryReply;
    ipc_export_allocation(m::IpcExportAllocation) -> m::IpcExportAllocationReply<'static>;
    ipc_open_allocation(m::IpcOpenAllocation<'_>) -> m::IpcOpenAllocationReply;
    ipc_export_event(m::IpcExportEvent) -> m::IpcExportEventReply<'static>;
    ipc_open_event(m::IpcOpenEvent<'_>) -> ();
    event_elapsed(m::EventElapsed) -> m::EventElapsedReply;
    host_func(m::HostFunc) -> ();
    host_func_done(m::HostFuncDone) -> ();
    stream_mem_ops(m::StreamMemOps<'_>) -> ();
    cu_stream_wait_value32_v2(m::CuStreamWaitValue32V2) -> ();
    cu_stream_wait_value64_v2(m::CuStreamWaitValue64V2) -> ();
    cu_stream_write_value32_v2(m::CuStreamWriteValue32V2) -> ();
    cu_stream_write_value64_v2(m::CuStreamWriteValue64V2) -> ();
    mem_map(m::MemMap) -> ();
    mem_unmap(m::MemUnmap) -> ();
    allocation_create(m::AllocationCreate) -> ();
    allocation_release(m::AllocationRelease) -> ();
    allocation_map(m::AllocationMap) -> ();
    allocation_unmap(m::AllocationUnmap) -> ();
    allocation_access(m::AllocationAccess) -> ();
    host_map(m::HostMap) -> ();
    host_unmap(m::HostUnmap) -> ();
    host_write(m::HostWrite<'_>) -> ();
    host_watch(m::HostWatch) -> ();
    copy(m::Copy) -> ();
    copy_in(m::CopyIn<'_>) -> ();
    copy_placed(m::CopyPlaced) -> ();
    copy_out(m::CopyOut) -> Pending;
    copy_box(m::CopyBox<'_>) -> ();
    copy_box_in(m::CopyBoxIn<'_>) -> ();
    copy_box_out(m::CopyBoxOut<'_>) -> Pending;
    cu_memset_d8_v2(m::CuMemsetD8V2) -> ();
    cu_memset_d16_v2(m::CuMemsetD16V2) -> ();
    cu_memset_d32_v2(m::CuMemsetD32V2) -> ();
    cu_memset_d8_async(m::CuMemsetD8Async) -> ();
    cu_memset_d16_async(m::CuMemsetD16Async) -> ();
    cu_memset_d32_async(m::CuMemsetD32Async) -> ();
    cu_memset_d2_d8_v2(m::CuMemsetD2D8V2) -> ();
    cu_memset_d2_d16_v2(m::CuMemsetD2D16V2) -> ();
    cu_memset_d2_d32_v2(m::CuMemsetD2D32V2) -> ();
    cu_memset_d2_d8_async(m::CuMemsetD2D8Async) -> ();
    cu_memset_d2_d16_async(m::CuMemsetD2D16Async) -> ();
    cu_memset_d2_d32_async(m::CuMemsetD2D32Async) -> ();
    cu_array_create_v2(m::CuArrayCreateV2<'_>) -> ();
    cu_array3_dcreate_v2(m::CuArray3DCreateV2<'_>) -> ();
    cu_array_destroy(m::CuArrayDestroy) -> ();
    cu_array_get_descriptor_v2(m::CuArrayGetDescriptorV2) -> m::CuArrayGetDescriptorV2Reply<'static>;
    cu_array3_dget_descriptor_v2(m::CuArray3DGetDescriptorV2) -> m::CuArray3DGetDescriptorV2Reply<'static>;
    cu_mipmapped_array_create(m::CuMipmappedArrayCreate<'_>) -> ();
    cu_mipmapped_array_destroy(m::CuMipmappedArrayDestroy) -> ();
    cu_mipmapped_array_get_level(m::CuMipmappedArrayGetLevel) -> ();
    texture_create(m::TextureCreate<'_>) -> m::TextureCreateReply;
    surface_create(m::SurfaceCreate<'_>) -> m::SurfaceCreateReply;
    cu_tex_object_destroy(m::CuTexObjectDestroy) -> ();
    cu_tex_object_get_texture_desc(m::CuTexObjectGetTextureDesc) -> m::CuTexObjectGetTextureDescReply<'static>;
    cu_surf_object_destroy(m::CuSurfObjectDestroy) -> ();
    texture_1d_width_max(m::Texture1dWidthMax) -> m::Texture1dWidthMaxReply;
    capture_begin(m::CaptureBegin<'_>) -> ();
    capture_end(m::CaptureEnd) -> m::CaptureEndReply;
    capture_info(m::CaptureInfo) -> m::CaptureInfoReply<'static>;
    capture_update(m::CaptureUpdate<'_>) -> ();
    graph_instantiate(m::GraphInstantiate) -> m::GraphInstantiateReply;
    graph_launch(m::GraphLaunch) -> ();
    graph_nodes(m::GraphNodes) -> m::GraphNodesReply<'static>;
    graph_edges(m::GraphEdges) -> m::GraphEdgesReply<'static>;
    graph_node_neighbours(m::GraphNodeNeighbours) -> m::GraphNodeNeighboursReply<'static>;
    graph_exec_update(m::GraphExecUpdate) -> m::GraphExecUpdateReply;
    graph_add_dependencies(m::GraphAddDependencies<'_>) -> ();
    graph_remove_dependencies(m::GraphRemoveDependencies<'_>) -> ();
    graph_add(m::GraphAdd<'_>) -> ();
    graph_set(m::GraphSet<'_>) -> ();
    graph_work(m::GraphWork) -> m::GraphWorkReply<'static>;
    graph_child(m::GraphChild) -> m::GraphChildReply;
    graph_find_in_clone(m::GraphFindInClone) -> m::GraphFindInCloneReply;
    graph_node_attribute(m::GraphNodeAttribute) -> m::GraphNodeAttributeReply<'static>;
    graph_node_set_attribute(m::GraphNodeSetAttribute<'_>) -> ();
    graph_conditional(m::GraphConditional) -> m::GraphConditionalReply;
    cu_graph_kernel_node_copy_attributes(m::CuGraphKernelNodeCopyAttributes) -> ();
    graph_dot(m::GraphDot) -> m::GraphDotReply<'static>;
    cu_graph_create(m::CuGraphCreate) -> ();
    graph_clone(m::GraphClone) -> ();
    cu_graph_destroy(m::CuGraphDestroy) -> ();
    cu_graph_destroy_node(m::CuGraphDestroyNode) -> ();
    cu_graph_exec_destroy(m::CuGraphExecDestroy) -> ();
    cu_graph_exec_get_flags(m::CuGraphExecGetFlags) -> m::CuGraphExecGetFlagsReply;
    cu_graph_node_get_enabled(m::CuGraphNodeGetEnabled) -> m::CuGraphNodeGetEnabledReply;
    cu_graph_node_set_enabled(m::CuGraphNodeSetEnabled) -> ();
    graph_node_type(m::GraphNodeType) -> m::GraphNodeTypeReply;
    cu_graph_upload(m::CuGraphUpload) -> ();
    library_load(m::LibraryLoad<'_>) -> m::LibraryLoadReply<'static>;
    library_unload(m::LibraryUnload) -> ();
    library_global(m::LibraryGlobal<'_>) -> m::LibraryGlobalReply;
    kernel_attributes(m::KernelAttributes) -> m::KernelAttributesReply<'static>;
    kernel_set_attribute(m::KernelSetAttribute) -> ();
    cu_func_load(m::CuFuncLoad) -> ();
    cu_func_set_cache_config(m::CuFuncSetCacheConfig) -> ();
    cu_func_set_shared_mem_config(m::CuFuncSetSharedMemConfig) -> ();
    link_create(m::LinkCreate<'_>) -> ();
    cu_link_destroy(m::CuLinkDestroy) -> ();
    link_add(m::LinkAdd<'_>) -> m::LinkAddReply<'static>;
    link_complete(m::LinkComplete) -> m::LinkCompleteReply<'static>;
    launch(m::Launch<'_>) -> ();
    occupancy(m::Occupancy<'_>) -> m::OccupancyReply;
    activity_enable(m::ActivityEnable) -> m::ActivityEnableReply<'static>;
    activity_clock(m::ActivityClock) -> m::ActivityClockReply;
    activity_number(m::ActivityNumber) -> m::ActivityNumberReply;
    activity_take(m::ActivityTake) -> m::ActivityTakeReply<'static>;
    nvml_snapshot(m::NvmlSnapshot) -> m::NvmlSnapshotReply<'static>;
}

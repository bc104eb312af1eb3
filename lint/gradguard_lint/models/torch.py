"""PyTorch, and packages with PyTorch models."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.models.torch_words import STAYS_BEHIND
from gradguard_lint.words import words

_FROM_GRAPHS = words(
    "NeighborLoader LinkNeighborLoader NodeLoader LinkLoader HGTLoader ClusterLoader "
    "RandomNodeLoader ShaDowKHopSampler GraphSAINTSampler GraphSAINTNodeSampler "
    "GraphSAINTEdgeSampler GraphSAINTRandomWalkSampler RandomNodeSampler NeighborSampler ZipLoader"
)
"""Loaders of PyTorch Geometric that sample from a graph."""

_LOADERS = (
    "torch.utils.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torchdrug.data.DataLoader",
    "schnetpack.data.AtomsLoader",
    under("monai.data", "DataLoader ThreadDataLoader"),
    "torchio.SubjectsLoader",
    under("dgl.dataloading", "GraphDataLoader DataLoader NodeDataLoader EdgeDataLoader"),
    under("torch_geometric.loader", "DataLoader DataListLoader DenseDataLoader TemporalDataLoader"),
    under("torch_geometric.loader", " ".join(sorted(_FROM_GRAPHS))),
)
"""Torch's loader and its subclasses."""


LIBRARY = Library(
    tops=(
        "torch",
        *words("torchvision torchaudio timm pytorch_lightning lightning botorch gpytorch"),
        *words("segmentation_models_pytorch torch_geometric"),
    ),
    framework=True,
    spelled={
        "torch.autograd.variable.": "torch.autograd.",
        "torch.autograd.grad_mode.": "torch.",
        "torch.autograd.no_grad": "torch.no_grad",
        "torch.autograd.enable_grad": "torch.enable_grad",
        "torch.autograd.inference_mode": "torch.inference_mode",
        "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
        "torch.amp.autocast_mode.": "torch.amp.",
        "torch.amp.grad_scaler.": "torch.amp.",
        "torch.cuda.amp.autocast_mode.": "torch.cuda.amp.",
        "torch.cuda.amp.grad_scaler.": "torch.cuda.amp.",
        "torch.nn.parameter.": "torch.nn.",
        "torch.utils.data.dataloader.": "torch.utils.data.",
        "torch.utils.data.dataset.": "torch.utils.data.",
        "torch_geometric.loader.dataloader.": "torch_geometric.loader.",
        "monai.data.dataloader.": "monai.data.",
        "torchio.data.SubjectsLoader": "torchio.SubjectsLoader",
        **{
            f"torch_geometric.data.{name}": f"torch_geometric.loader.{name}"
            for name in sorted(_FROM_GRAPHS | words("DataLoader DataListLoader DenseDataLoader"))
        },
    },
    rows=(
        Row("torch.device", "device"),
        Row("torch.set_default_device", "default-device", argument=(0, "device")),
        Row("torch.set_default_tensor_type", "default-device", argument=(0, "t")),
        Row(
            "torch.cuda.is_available torch.accelerator.is_available torch.cuda.is_bf16_supported "
            "torch.cuda.is_tf32_supported",
            "asks-gpu",
            framework="torch",
        ),
        Row("torch.backends.cuda.is_built", "asks-gpu"),
        Row("torch.cuda.device_count", "gpu-count"),
        Row(
            under(
                "torch.cuda",
                "get_device_name get_device_properties get_device_capability current_device "
                "memory_summary",
            ),
            "gpu",
            framework="torch",
            flag="asks-bare",
        ),
        Row(
            under("torch.cuda", "mem_get_info current_stream default_stream synchronize")
            + " torch.accelerator.synchronize torch.accelerator.current_stream",
            "gpu",
            framework="torch",
            flag="asks",
        ),
        Row(
            under(
                "torch.cuda",
                "Stream ExternalStream CUDAGraph stream init ipc_collect FloatTensor DoubleTensor "
                "LongTensor HalfTensor IntTensor ByteTensor BoolTensor BFloat16Tensor "
                "current_blas_handle",
            ),
            "gpu",
            framework="torch",
        ),
        Row(
            "torch.cuda.set_device",
            "gpu",
            framework="torch",
            argument=(0, "device"),
            flag="chooses",
        ),
        Row("torch.cuda.Event", "thing", kind="gpu-event"),
        Row("torch.cuda.device", "thing", kind="gpu-device", gpu=True, argument=(0, "device")),
        Row("torch.random.fork_rng", "fork-rng", framework="torch", argument=(0, "devices")),
        Row(
            under(
                "torch.cuda",
                "get_arch_list get_gencode_flags is_current_stream_capturing get_rng_state "
                "get_rng_state_all initial_seed set_per_process_memory_fraction memory_usage "
                "reset_peak_memory_stats reset_max_memory_allocated utilization temperature "
                "power_draw clock_rate list_gpu_processes can_device_access_peer cudart MemPool "
                "get_sync_debug_mode set_sync_debug_mode",
            )
            + " torch.backends.cudnn.version "
            + under(
                "torch.accelerator",
                "current_device_index current_device_idx set_device_index set_device_idx",
            ),
            "gpu-driver",
            framework="torch",
        ),
        Row("torch.set_num_threads", "threads", framework="torch"),
        Row(
            "threadpoolctl.threadpool_limits",
            "threads",
            framework="torch",
            argument=(0, "limits"),
            flag="by-library",
        ),
        Row(
            "lightning.seed_everything lightning.pytorch.seed_everything "
            "lightning.fabric.seed_everything lightning.fabric.utilities.seed.seed_everything",
            "seed",
            flag="random numpy torch",
        ),
        Row(
            "torch.manual_seed torch.random.manual_seed torch.seed",
            "seed",
            framework="torch",
            kind="rng",
        ),
        Row("torch.is_grad_enabled", "asks-grad"),
        Row(under("torch", "no_grad inference_mode enable_grad set_grad_enabled"), "grad-mode"),
        Row(
            "torch.autocast torch.cuda.amp.autocast torch.amp.autocast torch.cpu.amp.autocast",
            "autocast",
        ),
        Row(
            "torch.cuda.amp.GradScaler torch.amp.GradScaler torch.GradScaler "
            "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
            "thing",
            kind="scaler",
            driver=True,
        ),
        Row("torch.is_tensor", "is-tensor", argument=(0, "obj")),
        Row("torch.Generator", "generator", argument=(0, "device")),
        Row("torch.optim.lr_scheduler.* torch.optim.swa_utils.*", "nothing"),
        Row("torch.optim.*", "optimizer", only="class"),
        Row("torch.nn.Parameter", "parameter"),
        Row("torch.nn.ParameterList", "parameter", flag="list"),
        Row("torch.nn.ParameterDict", "parameter", flag="dict"),
        Row("torch.autograd.Variable", "variable", framework="torch"),
        Row("torch.autograd.grad torch.autograd.backward", "gradients"),
        Row("torch.distributions.*", "distribution", only="class"),
        Row("torch.from_numpy torch.from_dlpack", "tensor", flag="shares"),
        Row("torch.load torch.jit.load", "load", argument=(1, "map_location")),
        Row("torch.nn.init.*", "filled"),
        Row("torch.nn.init.orthogonal_", "filled", flag="heavy"),
        Row("torch.jit.script torch.jit.trace", "identity"),
        Row(
            "torch.nn.DataParallel torch.nn.parallel.DataParallel torch.compile",
            "identity",
            driver=True,
        ),
        Row(
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm torch.nn.utils.weight_norm "
            "torch.nn.utils.spectral_norm torch.nn.utils.parametrizations.weight_norm "
            "torch.nn.utils.parametrizations.spectral_norm "
            "torch.nn.utils.parametrizations.orthogonal",
            "identity",
            argument=(0, "module"),
        ),
        Row(
            "torch.nn.utils.parameters_to_vector torch.nn.utils.rnn.pad_sequence", "tensor-function"
        ),
        Row(
            "torch.nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad_norm "
            "torch.nn.utils.get_total_norm",
            "total-norm",
        ),
        Row("torch.nn.parallel.* torch.nn.utils.*", "nothing"),
        Row("torch.nn.ModuleList", "identity", argument=(0, "modules"), flag="list"),
        Row("torch.nn.ModuleDict", "identity", argument=(0, "modules")),
        Row("torch.nn.functional.*", "tensor-function"),
        Row("torch.nn.*", "model", only="class", framework="torch"),
        Row(under("torchvision.models", "get_weight get_model_weights list_models"), "nothing"),
        Row(
            "torchvision.models.* torchaudio.models.*",
            "model",
            only="of-modules",
            framework="torch",
        ),
        Row("segmentation_models_pytorch.*", "model", framework="torch"),
        Row("timm.create_model", "model", framework="torch"),
        Row(
            under(
                "torch",
                "randn rand zeros ones tensor arange empty full linspace logspace eye randint "
                "randperm as_tensor normal zeros_like ones_like rand_like randn_like empty_like "
                "full_like randint_like range scalar_tensor sparse_coo_tensor hann_window "
                "hamming_window tril_indices triu_indices asarray frombuffer complex",
            ),
            "tensor",
        ),
        Row(
            under(
                "torch",
                "FloatTensor Tensor LongTensor DoubleTensor IntTensor BoolTensor HalfTensor",
            ),
            "tensor",
            flag="plain",
        ),
        Row(under("torch", "get_num_threads typename set_default_dtype"), "nothing"),
        Row("torch.save torch.jit.save", "saved"),
        Row("torch.optim.swa_utils.update_bn", "buffers-made", argument=(1, "model")),
        Row("torch.linalg.*", "tensor-function", flag="heavy"),
        Row("torch.special.* torch.fft.*", "tensor-function"),
        Row(
            "torch.func.functional_call torch.nn.utils.stateless.functional_call", "functional-call"
        ),
        Row("torch.func.vmap torch.vmap", "identity"),
        Row("torch.func.*", "nothing"),
        Row(
            under("torch", "grad jacrev jacfwd hessian vjp jvp func cuda backends utils"), "nothing"
        ),
        *(Row(names, "loader") for names in _LOADERS),
        Row(
            "torch.distributed.init_process_group torch.distributed.rpc.init_rpc "
            "torch.distributed.init_device_mesh torch.distributed.device_mesh.init_device_mesh "
            "deepspeed.init_distributed horovod.torch.init",
            "process-group",
        ),
        Row("torch.utils.hooks.unserializable_hook", "mark", argument=(0, "f"), flag=STAYS_BEHIND),
        Row("torch.utils.checkpoint.checkpoint", "applied", argument=(0, "function")),
        Row("torch.profiler.profile", "nothing", driver=True),
        Row("torch.utils.* torch.backends.* torch.cuda.* torch.distributed.*", "nothing"),
        Row("torch.multiprocessing.*", "nothing"),
        Row("torch.*", "tensor-function", only="function"),
    ),
    bases={
        "torch.nn.Parameter": "",
        "torch.nn.functional.*": "",
        "torch.nn.*": "torch",
        "torch.optim.lr_scheduler.*": "",
        "torch.optim.swa_utils.*": "",
        "torch.optim.*": "optimizer",
        "torch.jit.ScriptModule": "torch",
        "gpytorch.Module": "torch",
        "gpytorch.models.*": "torch",
        "torch_geometric.nn.*": "torch",
        "botorch.models.*": "torch",
    },
)

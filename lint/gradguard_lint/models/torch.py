"""PyTorch, and the packages that give its models."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.words import words

NOT_SMOOTH = words(
    "argmax argmin argsort eq ne lt le gt ge equal allclose isclose isnan isinf isfinite any "
    "all nonzero count_nonzero bincount unique histc bucketize searchsorted sign round floor "
    "ceil long int bool byte short numel size dim is_tensor is_floating_point argwhere "
    "logical_and logical_or logical_not logical_xor multinomial bernoulli one_hot "
    "floor_divide isin matrix_rank"
)
"""Operations whose result has no history."""

HEAVY = words(
    "matmul mm bmm addmm einsum linear conv1d conv2d conv3d svd eigh cholesky inverse "
    "pinverse solve matrix_power matrix_exp svdvals eigvalsh lstsq qr fft cdist baddbmm "
    "tensordot bilinear"
)
"""Operations that start the native compute threads."""

REDUCTIONS = words(
    "all amax amin any max mean median min nanmean nansum prod std sum var allclose equal isclose "
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"
)
"""Operations that do so on large tensors, and make one number of them, or less of each.

Seen not to: argmax, cumsum, gather, norm, softmax of a vector, topk."""

ELEMENTWISE = words(
    "abs absolute add addcdiv addcmul ceil clamp clamp_max clamp_min clone copy cos cosh div "
    "divide elu eq erf exp exp2 expm1 fill floor ge gelu gt isnan le leaky_relu lerp log log10 "
    "log1p log2 logical_and logical_not logical_or lt masked_fill maximum minimum mul multiply "
    "nan_to_num ne neg negative pow reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin "
    "sinh softplus sqrt square sub subtract tan tanh where cat concat concatenate stack hstack "
    "vstack zero"
)
"""Those that have an element for each of theirs; in place, too."""

BY_SIZE = ELEMENTWISE | REDUCTIONS
"""All that start the native compute threads for large tensors alone."""

FILLED = words("zeros ones full arange linspace logspace zeros_like ones_like full_like randperm")
"""Functions that do so to make a large tensor; drawing its elements is done by one thread."""

CLEARS = words("zero_ fill_")
"""Methods of tensors after which nothing is left of what a gradient was."""

GIVES = words(
    "add_ addcmul_ copy_ index_add_ index_copy_ lerp_ put_ scatter_ scatter_add_ set_ sub_"
)
"""Those by which a gradient gets what it is given."""

STOPS = words("item tolist numpy data_ptr element_size storage")
"""Methods of tensors that give plain values."""

OF_TENSORS = words("detach cpu cuda requires_grad grad grad_fn backward")
"""Attributes that torch's tensors have, and neither arrays nor containers."""

COUNTS = words("size dim numel ndimension nelement")
"""Methods of tensors that tell how large they are."""

QUESTIONS = words(
    "is_contiguous is_floating_point get_device type_as stride retain_grad is_cuda share_memory_"
)
"""Methods of tensors that compute nothing."""

OF_MODULES = words(
    "parameters named_parameters buffers named_buffers modules named_modules children "
    "named_children state_dict train eval"
)
"""Methods that only modules have, and that compute nothing."""

HOOKS = words("register_hook register_post_accumulate_grad_hook")
"""Methods of tensors that put a hook on them."""

STAYS_BEHIND = "stays-behind"
"""The mark of a hook that is meant to stay where it was registered."""

MODULE_METHODS = words(
    "buffers children modules named_buffers named_children named_modules named_parameters "
    "parameters share_memory"
)
"""What only a torch module has."""

PARAMETERS = words("weight bias in_proj_weight in_proj_bias")
"""What modules call their parameters."""

SEVERAL = words(
    "split chunk unbind tensor_split broadcast_tensors meshgrid svd qr eigh split_with_sizes"
)
"""Operations that give several tensors."""

WITH_INDICES = words("topk sort kthvalue mode cummax cummin")
"""Operations that give values, and the indices at which they stand."""

ALONG = words("max min median nanmedian")
"""Operations that do so where they are told a dimension."""

WHOLE = words("uint8 uint16 uint32 uint64 int8 int16 short int32 int int64 long bool")
"""Types whose tensors have no history."""

ARRANGES = words(
    "clone cat concat concatenate stack hstack vstack dstack split chunk unbind tensor_split "
    "flip fliplr flipud rot90 roll squeeze unsqueeze transpose permute movedim reshape flatten "
    "narrow select index_select gather masked_select take tile repeat_interleave broadcast_to "
    "pad interpolate"
)
"""Operations that put in another order, or copy, what they are given: data are prepared so."""

SETTINGS = words(
    "dim dims keepdim dtype size scale_factor mode align_corners p training inplace reduction "
    "kernel_size stride padding dilation groups eps"
)
"""Arguments of functions that are no tensors."""

DRAWS = words("randn rand randint randperm normal rand_like randn_like randint_like")
DRAWS_OF = words("multinomial bernoulli poisson")
"""Functions that draw with the probabilities they are given; most are methods, too."""

DATA = words("tensor as_tensor asarray scalar_tensor")
"""Functions that are given the elements, not the size."""

IN_PLACE_DRAWS = words("random_ normal_ uniform_ bernoulli_ exponential_")

ELEMENTS = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}
"""What types of elements are called, where they have other names."""

CASTS = words("double float half int long short bool bfloat16")
"""Methods that give a tensor of another type, or the same one where it has that type."""

VIEWS = words(
    "view reshape squeeze unsqueeze t transpose permute flatten ravel narrow select swapaxes "
    "expand expand_as view_as movedim"
)
"""Methods of tensors that give their memory in another shape."""

RESHAPES = words("reshape flatten ravel")
"""Those of them that give a copy where the elements lie apart."""

IN_ORDER = RESHAPES | words("view view_as squeeze unsqueeze")
"""Those of them that leave the elements in the order that they have in memory."""

TURNS = words("t transpose permute swapaxes movedim")
"""Those of them that change the order of the dimensions."""

KEEPS_COUNT = ELEMENTWISE | IN_ORDER | TURNS | CASTS | {"contiguous"}
"""Methods that give as many elements as the largest of their operands has."""

ORDERS = ARRANGES | VIEWS | CASTS | words("contiguous parameters_to_vector")
"""Operations that give the values they are given, in another order or type, or together."""

NOT_WRITING = words(
    "requires_grad_ detach_ squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_ "
    "rename_ resize_ share_memory_ set_ retain_grad_ sparse_resize_"
)
"""Methods of tensors that change what they are, but no element."""

WITH_FUNCTIONS = words("torch torch.nn.functional torch.special torch.linalg torch.fft")
"""Packages that have functions which give tensors."""

GIVE_ONE = words(
    "abs absolute acos add addbmm addcdiv addcmul addmm addmv addr arange as_tensor asin atan "
    "atan2 avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d baddbmm "
    "batch_norm binary_cross_entropy binary_cross_entropy_with_logits bmm broadcast_to cat cdist "
    "celu clamp clamp_max clamp_min clip clone concat concatenate conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d cos cosh cosine_embedding_loss "
    "cosine_similarity cross cross_entropy ctc_loss cumprod cumsum det deg2rad diag diag_embed "
    "diagonal diff dist div divide dot dropout dropout1d dropout2d dropout3d einsum elu "
    "embedding empty erf erfc exp exp2 expm1 eye fft fft2 flatten flip frac full full_like "
    "gather gelu glu group_norm hardtanh hinge_embedding_loss hstack huber_loss ifft "
    "index_select inner instance_norm interpolate inv inverse irfft kl_div kron l1_loss "
    "layer_norm leaky_relu lerp linear linspace log log10 log1p log2 log_softmax logaddexp "
    "logdet logit logsumexp margin_ranking_loss masked_fill masked_select matmul matrix_exp "
    "matrix_norm matrix_power mean minimum maximum mish mm moveaxis movedim mse_loss mul "
    "multi_margin_loss multiply mv nan_to_num nanmean nansum narrow neg negative nll_loss norm "
    "normalize one_hot ones ones_like outer pad pairwise_distance permute pinv pinverse "
    "pixel_shuffle pow prod rand rand_like randn randn_like real reciprocal relu relu6 "
    "repeat_interleave reshape rfft roll rot90 rsqrt scaled_dot_product_attention scatter "
    "scatter_add select selu sigmoid silu sin sinc sinh smooth_l1_loss soft_margin_loss softmax "
    "softmin softplus softsign solve sqrt square squeeze stack std sub subtract sum take tan "
    "tanh tensor tensordot tile trace transpose tril triplet_margin_loss triu unfold unsqueeze "
    "upsample var vdot vecdot vector_norm vstack where zeros zeros_like"
)
"""Functions, and methods, that give one tensor, however they are called."""

METHODS_GIVE_ONE = words(
    "bfloat16 clamp_ contiguous cpu cuda detach detach_ double expand expand_as float half mul_ "
    "add_ sub_ div_ repeat requires_grad_ sum_to_size t to type_as view view_as zero_"
)
"""Methods alone that give one tensor, however they are called."""

TO_ONE = words(
    "all amax amin any max mean median min nanmean nansum norm prod std sum var vector_norm "
    "matrix_norm"
)
"""Operations that make one number of a tensor, unless they are told a dimension or another one."""

ONE_OF_ALL = words("max min median nanmedian amax amin")
"""What gives one tensor where it is called without a dimension."""

LAYERS = words(
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "LazyLinear LazyConv1d LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d "
    "SyncBatchNorm LayerNorm GroupNorm RMSNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "LocalResponseNorm Dropout Dropout1d Dropout2d Dropout3d AlphaDropout ReLU ReLU6 LeakyReLU "
    "PReLU RReLU ELU SELU CELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Softplus Softsign "
    "Softshrink Hardshrink Hardtanh Hardswish Hardsigmoid Tanhshrink Threshold GLU Softmax "
    "Softmax2d Softmin LogSoftmax AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveAvgPool3d LPPool1d LPPool2d MaxUnpool1d MaxUnpool2d MaxUnpool3d "
    "Flatten Unflatten Embedding EmbeddingBag PixelShuffle PixelUnshuffle Upsample "
    "UpsamplingNearest2d UpsamplingBilinear2d Fold Unfold ZeroPad1d ZeroPad2d ConstantPad1d "
    "ConstantPad2d ReflectionPad1d ReflectionPad2d ReplicationPad2d CosineSimilarity "
    "PairwiseDistance RNNCell GRUCell Transformer TransformerEncoder TransformerDecoder "
    "TransformerEncoderLayer TransformerDecoderLayer L1Loss MSELoss CrossEntropyLoss CTCLoss "
    "NLLLoss PoissonNLLLoss GaussianNLLLoss KLDivLoss BCELoss BCEWithLogitsLoss "
    "MarginRankingLoss HingeEmbeddingLoss MultiLabelMarginLoss HuberLoss SmoothL1Loss "
    "SoftMarginLoss CosineEmbeddingLoss MultiMarginLoss TripletMarginLoss"
)
"""Modules that give one tensor; not those that may give several: recurrent ones, attention."""

POOLS = words(
    "MaxPool1d MaxPool2d MaxPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d "
    "FractionalMaxPool2d FractionalMaxPool3d"
)
"""Modules that give one tensor, unless they are asked for indices, too."""

CHANGE_PARTS = words("append extend insert pop add_module register_module register_forward_hook")
"""Methods of modules after which calling them may run other code."""

STATISTICS = words(
    "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LazyBatchNorm1d LazyBatchNorm2d "
    "LazyBatchNorm3d"
)
"""Modules that keep running statistics."""

IF_TRACKED = words("InstanceNorm1d InstanceNorm2d InstanceNorm3d")
"""Modules that keep them where they are told to."""

NORMED = (
    "densenet",
    "efficientnet",
    "googlenet",
    "inception",
    "mnasnet",
    "mobilenet",
    "regnet",
    "resne",
    "shufflenet",
    "wide_resnet",
)
"""How the names of networks begin that have such modules."""

BUFFERS = words("running_mean running_var num_batches_tracked")
"""Their statistics."""

DROPOUTS = words(
    "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout "
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"
)
"""Modules and functions that draw in training mode."""

WEIGHTLESS = words(
    "ReLU Sigmoid Tanh Dropout Softmax LogSoftmax Flatten Identity MaxPool2d AvgPool2d GELU "
    "Softplus LeakyReLU ELU Unfold Fold AdaptiveAvgPool2d MaxPool1d AvgPool1d SiLU Upsample "
    "ZeroPad2d ReLU6 RReLU SELU CELU Mish LogSigmoid Softsign Softshrink Hardshrink Hardtanh "
    "Hardswish Hardsigmoid Tanhshrink Threshold GLU Softmax2d Softmin Dropout1d Dropout2d "
    "Dropout3d AlphaDropout FeatureAlphaDropout MaxPool3d AvgPool3d LPPool1d LPPool2d "
    "AdaptiveAvgPool1d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d "
    "FractionalMaxPool2d FractionalMaxPool3d LocalResponseNorm PixelShuffle PixelUnshuffle "
    "ChannelShuffle UpsamplingNearest2d UpsamplingBilinear2d ZeroPad1d ZeroPad3d ConstantPad1d "
    "ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d "
    "ReplicationPad1d ReplicationPad2d ReplicationPad3d Unflatten"
)
"""Modules without parameters."""

STATEFUL = words(
    "eval train float double half apply type share_memory to_empty bfloat16 requires_grad_"
)
"""Methods of modules that give the module itself."""

_FROM_GRAPHS = words(
    "NeighborLoader LinkNeighborLoader NodeLoader LinkLoader HGTLoader ClusterLoader "
    "RandomNodeLoader ShaDowKHopSampler GraphSAINTSampler GraphSAINTNodeSampler "
    "GraphSAINTEdgeSampler GraphSAINTRandomWalkSampler RandomNodeSampler NeighborSampler ZipLoader"
)
"""Loaders of PyTorch Geometric that take their samples from a graph."""

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
"""Torch's loader and those that extend it."""


LIBRARY = Library(
    tops=(
        "torch",
        "torchvision",
        "torchaudio",
        "timm",
        "pytorch_lightning",
        "lightning",
        "botorch",
        "gpytorch",
        "segmentation_models_pytorch",
        "torch_geometric",
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
            "torch.nn.utils.parameters_to_vector torch.nn.utils.rnn.pad_sequence",
            "tensor-function",
        ),
        Row(
            "torch.nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad_norm "
            "torch.nn.utils.get_total_norm",
            "total-norm",
        ),
        Row("torch.nn.parallel.* torch.nn.utils.*", "nothing"),
        Row(
            "torch.nn.ModuleList",
            "identity",
            argument=(0, "modules"),
            flag="list",
        ),
        Row("torch.nn.ModuleDict", "identity", argument=(0, "modules")),
        Row("torch.nn.functional.*", "tensor-function"),
        Row("torch.nn.*", "model", only="class", framework="torch"),
        Row(
            under("torchvision.models", "get_weight get_model_weights list_models"),
            "nothing",
        ),
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
        Row(
            under(
                "torch",
                "get_num_threads typename set_default_dtype",
            ),
            "nothing",
        ),
        Row("torch.save torch.jit.save", "saved"),
        Row("torch.optim.swa_utils.update_bn", "buffers-made", argument=(1, "model")),
        Row("torch.linalg.*", "tensor-function", flag="heavy"),
        Row("torch.special.* torch.fft.*", "tensor-function"),
        Row(
            "torch.func.functional_call torch.nn.utils.stateless.functional_call",
            "functional-call",
        ),
        Row("torch.func.vmap torch.vmap", "identity"),
        Row("torch.func.*", "nothing"),
        Row(
            under("torch", "grad jacrev jacfwd hessian vjp jvp func cuda backends utils"),
            "nothing",
        ),
        *(Row(names, "loader") for names in _LOADERS),
        Row(
            under(
                "torch.utils.data",
                "BatchSampler ChainDataset ConcatDataset Subset TensorDataset default_collate "
                "get_worker_info random_split",
            ),
            "dataset",
        ),
        Row(
            "torch.distributed.init_process_group torch.distributed.rpc.init_rpc "
            "torch.distributed.init_device_mesh torch.distributed.device_mesh.init_device_mesh "
            "deepspeed.init_distributed horovod.torch.init",
            "process-group",
        ),
        Row(
            "torch.utils.hooks.unserializable_hook",
            "mark",
            argument=(0, "f"),
            flag=STAYS_BEHIND,
        ),
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

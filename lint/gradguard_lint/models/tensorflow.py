"""TensorFlow and Keras."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.words import words

FITS = words(
    "fit predict evaluate train_on_batch test_on_batch predict_on_batch fit_generator "
    "predict_generator evaluate_generator"
)
"""Methods of models that compute."""

STOPS = words(
    "stop_gradient argmax argmin argsort equal not_equal greater greater_equal less less_equal "
    "floor round sign shape size rank one_hot range"
)
"""Operations without a gradient."""

REARRANGES = words("concat stack reshape squeeze expand_dims transpose identity")
"""Operations that combine tensors or change their shape."""

BEGINS = words("awakens device-scope generator keras-model keras-optimizer tf-variable")
"""Transfers that initialize TensorFlow and its global generator without computing; so do those that
use the GPU."""

AWAKENS = "awakens"
"""The flag of models created with weights, which starts TensorFlow's threads."""

CONFIGURES = words(
    "backend cast_to_floatx clear_session count_params dtype epsilon floatx get_session get_uid "
    "image_data_format image_dim_ordering int_shape is_float_dtype is_int_dtype is_keras_tensor "
    "is_placeholder is_sparse is_tensor learning_phase learning_phase_scope "
    "manual_variable_initialization name_scope ndim placeholder reset_uids result_type "
    "set_epsilon set_floatx set_image_data_format set_image_dim_ordering set_learning_phase "
    "set_session standardize_dtype"
)
"""Functions of Keras's backend that don't compute: settings, and queries about them, graphs, shapes
and types, in any version."""

LIBRARY = Library(
    tops=("tensorflow", "keras", "tf_keras"),
    framework=True,
    marks=("scikit_learn",),
    spelled={
        "tensorflow.compat.v2.": "tensorflow.",
        "tensorflow.compat.v1.GradientTape": "tensorflow.GradientTape",
        "tensorflow.compat.v1.config.": "tensorflow.config.",
        "tensorflow.compat.v1.function": "tensorflow.function",
        "tensorflow.compat.v1.keras.": "keras.",
        "tensorflow.compat.v1.test.": "tensorflow.test.",
        "tensorflow.python.keras.": "keras.",
        "tensorflow.contrib.keras.": "keras.",
        "tensorflow.keras.": "keras.",
        "tf_keras.": "keras.",
    },
    rows=(
        Row("tensorflow.test.is_built_with_cuda", "asks-gpu"),
        Row(under("tensorflow.test", "is_gpu_available gpu_device_name"), "asks-gpu", gpu=True),
        Row("tensorflow.GradientTape tensorflow.autodiff.GradientTape", "thing", kind="tape"),
        Row(
            "tensorflow.config.list_physical_devices tensorflow.config.get_visible_devices "
            "tensorflow.config.experimental.list_physical_devices "
            "tensorflow.config.experimental.get_visible_devices",
            "gpu-list",
        ),
        Row(
            "tensorflow.config.list_logical_devices "
            "tensorflow.config.experimental.list_logical_devices",
            "gpu-list",
            gpu=True,
        ),
        Row(
            "tensorflow.config.set_visible_devices "
            "tensorflow.config.experimental.set_visible_devices",
            "visible-devices",
        ),
        Row(
            "tensorflow.config.experimental.set_memory_growth "
            "tensorflow.config.set_logical_device_configuration "
            "tensorflow.config.experimental.set_virtual_device_configuration",
            "grown",
        ),
        Row(
            "tensorflow.config.threading.set_intra_op_parallelism_threads "
            "tensorflow.config.threading.set_inter_op_parallelism_threads",
            "threads",
            framework="tensorflow",
        ),
        Row(
            under("tensorflow", "ConfigProto GPUOptions")
            + " "
            + under("tensorflow.compat.v1", "ConfigProto GPUOptions"),
            "session-options",
        ),
        Row("tensorflow.device", "device-scope", argument=(0, "device_name")),
        Row(
            "tensorflow.random.set_seed tensorflow.set_random_seed "
            "tensorflow.compat.v1.set_random_seed",
            "seed",
            framework="tensorflow",
        ),
        Row("keras.utils.set_random_seed", "seed", flag="random numpy tensorflow"),
        Row(
            "tensorflow.random.Generator.from_seed tensorflow.random.Generator "
            "tensorflow.random.Generator.from_non_deterministic_state "
            "tensorflow.random.Generator.from_state",
            "generator",
            flag="tensorflow.random.Generator",
        ),
        Row("tensorflow.Variable", "tf-variable", framework="tensorflow"),
        Row("tensorflow.map_fn", "map-fn"),
        Row(
            "tensorflow.function tensorflow.autograph.experimental.do_not_convert",
            "compiled",
            argument=(0, "func"),
        ),
        Row("tensorflow.saved_model.load", "keras-model", framework="tensorflow", flag=AWAKENS),
        Row("tensorflow.train.*", "optimizer", only="class"),
        Row(
            under("tensorflow", "disable_eager_execution disable_v2_behavior")
            + " "
            + under("tensorflow.compat.v1", "disable_eager_execution disable_v2_behavior"),
            "graphs",
        ),
        Row(
            "tensorflow.Session tensorflow.InteractiveSession tensorflow.compat.v1.Session "
            "tensorflow.compat.v1.InteractiveSession",
            "session",
        ),
        Row("tensorflow.Graph tensorflow.compat.v1.Graph", "thing", kind="graph"),
        Row(
            under("tensorflow.data.Dataset", "from_generator from_tensor_slices from_tensors range")
            + " "
            + under("tensorflow.data", "TextLineDataset TFRecordDataset"),
            "awakens",
            framework="tensorflow",
        ),
        Row(
            "tensorflow.data.* tensorflow.io.* tensorflow.summary.* tensorflow.train.* "
            "tensorflow.compat.* tensorflow.distribute.* tensorflow.python.* tensorflow.errors.* "
            "tensorflow.logging.* tensorflow.config.* tensorflow.version.* tensorflow.gfile.* "
            "tensorflow.saved_model.* tensorflow.autograph.* tensorflow.sysconfig.*",
            "nothing",
        ),
        Row(
            under(
                "tensorflow",
                "float16 float32 float64 int32 int64 bool string print summary compat "
                "version errors bfloat16 uint8 saved_model io gfile keras data "
                "config distribute train executing_eagerly enable_eager_execution "
                "enable_v2_behavior get_logger "
                "init_scope is_tensor name_scope debugging.enable_check_numerics "
                "debugging.disable_check_numerics debugging.disable_traceback_filtering "
                "debugging.enable_traceback_filtering debugging.set_log_device_placement",
            ),
            "nothing",
        ),
        Row(
            under(
                "tensorflow.random",
                "stateless_normal stateless_uniform stateless_truncated_normal "
                "stateless_binomial stateless_categorical stateless_gamma stateless_poisson "
                "stateless_parameterized_truncated_normal fold_in split create_rng_state "
                "get_global_generator set_global_generator",
            ),
            "operation",
        ),
        Row("tensorflow.random.*", "draw-function", only="function", framework="tensorflow"),
        Row("tensorflow.*", "operation", only="function"),
        Row("keras.wrappers.scikit_learn.*", "nothing"),
        Row(
            "keras.Model keras.Sequential keras.models.Model keras.models.Sequential "
            "tensorflow.Module keras.models.clone_model keras.models.model_from_json",
            "keras-model",
            framework="tensorflow",
        ),
        Row(
            "keras.models.load_model keras.saving.load_model",
            "keras-model",
            framework="tensorflow",
            flag=AWAKENS,
        ),
        Row(
            "keras.applications.*",
            "keras-model",
            only="class",
            framework="tensorflow",
            flag=AWAKENS,
        ),
        Row("keras.Input keras.layers.Input", "symbol"),
        Row("keras.layers.*", "layer", only="class"),
        Row("keras.optimizers.schedules.*", "nothing"),
        Row("keras.optimizers.*", "keras-optimizer", only="class"),
        Row("keras.metrics.*", "awakens", only="class", framework="tensorflow"),
        Row("keras.losses.*", "thing", only="class", kind="keras-loss"),
        Row(
            under("keras.backend", " ".join(sorted(CONFIGURES)))
            + " "
            + under("keras.backend.tensorflow_backend", " ".join(sorted(CONFIGURES)))
            + " "
            + under("keras.losses", "deserialize get serialize")
            + " "
            + under("keras.activations", "deserialize get serialize")
            + " keras.ops.is_tensor",
            "nothing",
        ),
        Row("keras.losses.* keras.backend.* keras.ops.* keras.activations.*", "operation"),
    ),
    bases={
        "keras.Model": "keras",
        "keras.Sequential": "keras",
        "keras.models.Model": "keras",
        "keras.models.Sequential": "keras",
        "tensorflow.Module": "keras",
        "keras.layers.*": "keras",
    },
)

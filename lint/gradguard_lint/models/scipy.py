"""scipy and pandas, as far as they draw from NumPy's global generator."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under

LIBRARY = Library(
    tops=("scipy", "pandas"),
    rows=(
        Row(
            under(
                "scipy.stats",
                "bernoulli beta betabinom binom cauchy chi2 dirichlet expon exponpow f gamma "
                "genextreme geom gumbel_l gumbel_r halfnorm hypergeom invgamma "
                "invwishart laplace levy logistic loglaplace lognorm loguniform multinomial "
                "multivariate_normal multivariate_t nbinom norm ortho_group pareto poisson "
                "powerlaw randint rayleigh skewnorm t triang truncexpon truncnorm uniform "
                "vonmises weibull_max weibull_min wishart",
            ),
            "variates",
            kind="variates",
        ),
        Row("scipy.stats.*", "variates"),
        Row(
            "pandas.DataFrame pandas.Series pandas.read_csv pandas.read_excel pandas.read_feather "
            "pandas.read_hdf pandas.read_json pandas.read_parquet pandas.read_pickle "
            "pandas.read_sql pandas.read_table pandas.concat pandas.merge",
            "thing",
            kind="frame",
        ),
    ),
)

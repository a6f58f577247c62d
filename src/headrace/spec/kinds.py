"""Every kind of resource by its name, so that a store can decode what it kept."""

from collections.abc import Mapping

from headrace.spec.accounts import Member, ServiceAccount, User
from headrace.spec.costs import DevicePrices
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.events import Webhook
from headrace.spec.grants import Grant
from headrace.spec.invoices import BillingProfile, Seller
from headrace.spec.models import Model, ModelVersion
from headrace.spec.nodes import Node, NodeLaunch
from headrace.spec.payments import Payment, PaymentAgreement
from headrace.spec.prices import PriceBook
from headrace.spec.resource import Resource
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.spec.terms import Terms

resource_types: Mapping[str, type[Resource]] = {
    resource_type.kind: resource_type
    for resource_type in (
        Tenant,
        Project,
        ApiKey,
        Model,
        ModelVersion,
        Deployment,
        Replica,
        PriceBook,
        DevicePrices,
        User,
        Member,
        ServiceAccount,
        Webhook,
        Seller,
        BillingProfile,
        Grant,
        Terms,
        PaymentAgreement,
        Payment,
        Node,
        NodeLaunch,
    )
}
